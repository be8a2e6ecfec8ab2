"""What studies share: the list of work, and packed flags."""

from pathlib import Path

import pytest

import reproduction.study as study
from rattle.errors import RattleError
from rattle.runs.lock import locked


def test_flags_come_back_from_their_packed_form() -> None:
    flags = [True, False, False, True, True, False, True, True, False, True]
    assert study.unpacked(study.packed(flags), len(flags)).tolist() == flags


def test_work_goes_on_after_a_run_that_diverged_and_waits_for_one_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    other = locked(tmp_path / "taken.lock")
    other.__enter__()  # another process measures it

    def release(_: float) -> None:
        other.__exit__(None, None, None)
        done.append("taken")

    def measure(job: str) -> None:
        if job == "diverges":
            raise RattleError("the loss diverged")
        done.append(job)

    monkeypatch.setattr(study, "sleep", release)
    jobs = ("taken", "first", "diverges", "second")
    study.share_work(lambda: [job for job in jobs if job not in done], lambda job: tmp_path / job, measure)
    assert done == ["first", "second", "taken"]
    assert capsys.readouterr().out == "diverges: the loss diverged\n"
