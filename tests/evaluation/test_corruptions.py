"""Accuracy under corruptions: by kind and severity, with n, from files and from the test images themselves."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from rattle.cli.main import main
from rattle.data import Images
from rattle.errors import RattleError
from rattle.evaluation.corruptions import measure_corruptions
from rattle.evaluation.target import Target
from rattle.report import build_page
from rattle.threat import Threat
from support.tiny_runs import digits, save_run, small_cnn


def test_every_kind_and_severity_is_measured_and_shown_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run")
    assert main(["evaluate", str(run), "--corruptions", "made", "--n", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "run" / "results" / "corruptions.json").read_text())
    assert (found["n"], len(found["kinds"])) == (20, 11)  # digits are grey: no saturation
    each = [kind["by_severity"] for kind in found["kinds"].values()]
    assert all(len(severities) == 5 for severities in each)
    mean = np.mean([one["accuracy"] for severities in each for one in severities])
    assert found["mean"]["accuracy"] == pytest.approx(mean)
    assert found["mean"]["low"] < mean < found["mean"]["high"]
    assert mean < found["clean"]["accuracy"]
    page = build_page([tmp_path / "run"]).read_text(encoding="utf-8")
    assert "jpeg compression" in page


class Grey(nn.Module):
    """A network of grey digits for images of three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.own = small_cnn()

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x.mean(1, keepdim=True))


def test_a_folder_of_files_is_measured_severity_by_severity(tmp_path: Path) -> None:
    _, _, x, y = digits()
    clean, folder = x[:50].permute(0, 2, 3, 1).numpy().repeat(3, 3), tmp_path / "c"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(y[:50].numpy(), 5))
    np.save(folder / "dark.npy", np.concatenate([clean, clean, clean, clean, 0 * clean]))
    target = Target(
        name="grey",
        model=Grey(),
        test=Images(x.repeat(1, 3, 1, 1), y),
        classes=tuple("0123456789"),
        threat=Threat(),
        metadata={"data": "digits"},
        results=tmp_path / "results",
    )
    found = measure_corruptions(target, str(folder), n=40)
    accuracies = [one["accuracy"] for one in found["kinds"]["dark"]["by_severity"]]
    assert len(set(accuracies[:4])) == 1  # the same images, in the same order
    assert accuracies[4] < 0.3 < 0.8 < accuracies[0]
    other = replace(target, test=Images(x, y), model=small_cnn())
    with pytest.raises(RattleError, match=r"images \[3, 8, 8\], the model takes \[1, 8, 8\]"):
        measure_corruptions(other, str(folder))
