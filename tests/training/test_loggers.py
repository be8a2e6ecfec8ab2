"""Trackers: TensorBoard gets the scalars of metrics.jsonl, Weights & Biases and MLflow stay on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rattle.errors import RattleError
from rattle.recipes.catalog import get_recipe
from rattle.runs.paths import Run
from rattle.training.metrics import check_log, epoch_logger

LINES = [{"epoch": e, "step": 9 * e, "lr": 0.05, "loss": 2.0 / e, "zeroth": 0.5, "val_robust": 0.1 * e} for e in (1, 2)]


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_tensorboard_shows_the_scalars_that_were_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with epoch_logger("tensorboard", Run(tmp_path), get_recipe("digits-linf-cnn-at"), purge_step=1) as log:
        for line in LINES:
            log(line)
    found = EventAccumulator(str(tmp_path / "events"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"lr", "loss", "zeroth", "val_robust"}
    assert [(event.step, round(event.value, 4)) for event in found.Scalars("loss")] == [(1, 2.0), (2, 1.0)]


def test_wandb_runs_offline_with_the_recipe_and_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with epoch_logger("wandb", Run(tmp_path / "run"), get_recipe("digits-linf-cnn-at"), purge_step=1) as log:
        log(LINES[0])
    settings, session = wandb.init.call_args.kwargs, wandb.init.return_value
    assert settings["mode"] == "offline"
    assert settings["config"]["name"] == "digits-linf-cnn-at"
    session.log.assert_called_once_with({"lr": 0.05, "loss": 2.0, "zeroth": 0.5, "val_robust": 0.1}, step=1)
    session.finish.assert_called_once()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_holds_the_recipe_and_every_epoch_in_a_local_file(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    recipe, run = get_recipe("digits-linf-cnn-at"), Run(tmp_path / "run")
    for ends in ("FINISHED", "FAILED"):
        try:
            with epoch_logger("mlflow", run, recipe, purge_step=1) as log:
                for line in LINES:
                    log(line)
                if ends == "FAILED":
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'events' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rattle")
    failed, finished = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    assert (failed.info.status, finished.info.status) == ("FAILED", "FINISHED")
    assert finished.data.params["attack.threat.norm"] == "linf"
    history = client.get_metric_history(finished.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(1, 2.0), (2, 1.0)]


def test_a_missing_or_unknown_tracker_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(RattleError, match=rf"rattle-robust\[{name}\]"):
            check_log(name)
    with pytest.raises(RattleError, match="did you mean 'wandb'"):
        check_log("wandbb")
