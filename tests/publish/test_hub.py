"""rattle push and hf:OWNER/NAME through the real huggingface_hub, against a stand-in server on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rattle
from rattle.cli.main import main
from support.command import Command
from support.hub_server import TOKEN, Hub, running
from support.tiny_runs import save_run, small_cnn

pytest.importorskip("huggingface_hub")
# huggingface_hub 2.4 uploads by an argument that its HTTP client calls old
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_run(tmp_path_factory.mktemp("runs") / "a")
    assert main(["evaluate", str(folder), "--attacks", "pgd20", "--n", "50"]) == 0
    return folder


def forget_package() -> None:
    """Let huggingface_hub be imported anew: it reads its environment when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    forget_package()
    with running() as hub:
        settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
        settings |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        yield hub
    forget_package()


def test_a_pushed_run_is_loaded_bit_for_bit_and_its_card_is_code_that_runs_and_data_that_the_hub_reads(
    run: Path, hub: Hub, command: Command
) -> None:
    said = command("push", str(run), "me/digits", "--license", "mit")
    assert f"published as {hub.address}/me/digits/commit/" in said
    files = hub.files("me/digits")
    assert {"model.safetensors", "config.json", "recipe.yaml", "report.html", "results/pgd20.json"} <= files.keys()
    loaded, ours = rattle.load("hf:me/digits").state_dict(), small_cnn().state_dict()
    torch.testing.assert_close(dict(loaded), dict(ours), rtol=0, atol=0)
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "publishing.md").read_text(encoding="utf-8")
    for text in (files["README.md"].decode(), guide.replace("owner/name", "me/digits")):
        (python,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "hf:" in code]
        exec(python, {})
    assert main(["evaluate", "hf:me/digits", "--attacks", "pgd20", "--n", "50"]) == 0
    assert Path("hf_me_digits/results/pgd20.json").is_file()
    import huggingface_hub

    data = huggingface_hub.ModelCard.load("me/digits").data
    assert (data.license, data.library_name) == ("mit", "rattle")
    clean, robust = data.eval_results
    assert (clean.metric_name, robust.metric_name) == ("clean accuracy", "robust accuracy, PGD-20")
    assert robust.metric_args["n"] == 50


def test_a_revision_is_a_branch_and_a_branch_a_commit_or_a_tag_is_loaded(run: Path, hub: Hub) -> None:
    address = rattle.push(run, "me/digits", revision="v2", page=False)
    assert "config.json" not in hub.files("me/digits")
    for revision in ("v2", address.rpartition("/")[2]):
        rattle.load(f"hf:me/digits@{revision}")
    with pytest.raises(rattle.RattleError, match="hf:me/digits@v3"):
        rattle.load("hf:me/digits@v3")
    with pytest.raises(rattle.RattleError, match=r"config\.json"):
        rattle.load("hf:me/digits")


def test_a_second_push_removes_results_that_are_no_longer_there(run: Path, hub: Hub, tmp_path: Path) -> None:
    rattle.push(run, "me/digits")
    notes: list[str] = []
    rattle.push(save_run(tmp_path / "b", seed=1), "me/digits", page=False, note=notes.append)
    files = hub.files("me/digits")
    assert not [name for name in files if name.startswith("results/") or name == "report.html"]
    assert "has no results for the card" in notes[0]
    assert torch.equal(rattle.load("hf:me/digits").head.bias, small_cnn(1).head.bias)


def test_private_means_private(run: Path, hub: Hub, command: Command, monkeypatch) -> None:
    rattle.push(run, "me/hidden", private=True, page=False)
    rattle.push(run, "me/open", page=False)
    assert [repository.private for repository in hub.repositories.values()] == [True, False]
    assert "exists and is public" in command.refused("push", str(run), "me/open", "--private")
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_stranger")
    with pytest.raises(rattle.RattleError, match="private"):
        rattle.load("hf:me/hidden")


def test_what_the_hub_refuses_is_said_in_a_sentence(run: Path, hub: Hub, command: Command, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "  ")
    assert "HF_TOKEN" in command.refused("push", str(run), "me/x")
    assert not hub.requests  # named before anything is sent
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "403" in command.refused("push", str(run), "them/x", "--no-page")
    refused = command.refused("push", str(run), "me/x", "--no-page", "--license", "nonsense")
    assert '"license" must be one of' in refused
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_stranger")
    assert "401" in command.refused("push", str(run), "me/y", "--no-page")
    assert "Repository Not Found" in command.refused("evaluate", "hf:me/nothing")


def test_without_a_network_the_cache_serves_and_its_absence_is_said(
    run: Path, hub: Hub, command: Command, monkeypatch
) -> None:
    rattle.push(run, "me/digits", page=False)
    rattle.load("hf:me/digits")
    forget_package()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = len(hub.requests)
    rattle.load("hf:me/digits")
    assert len(hub.requests) == before
    assert "hf:me/nothing: the hub refused it" in command.refused("evaluate", "hf:me/nothing")


def test_what_names_code_is_refused_before_its_weights_are_downloaded(run: Path, hub: Hub, tmp_path: Path) -> None:
    rattle.push(run, "me/digits", page=False)
    files = dict(hub.files("me/digits"))
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for model in (f"{evil}:build", "evil:build", "timm:hf-hub:me/x", "os:system"):
        config = files["config.json"].decode().replace('"model": "cnn"', f'"model": "{model}"')
        hub.repositories["me/digits"].commit("main", files | {"config.json": config.encode()})
        with pytest.raises(rattle.RattleError, match="executes nothing"):
            rattle.load("hf:me/digits")
    assert not (tmp_path / "ran").exists()
    assert not [request for request in hub.requests if "resolve" in request and request.endswith("safetensors")]
