"""Two hundred seeded cases of bad input, in this process: each is done or refused in a sentence, and none executes."""

import runpy

import pytest

from fuzz.cases import GOOD, KINDS, run_case

EACH = {"recipes": 25, "checkpoints": 25, "images": 20, "formats": 25, "weights": 20, "results": 20}
EACH |= {"moved": 10, "commands": 25, "python": 40}


@pytest.mark.parametrize("kind", EACH)
def test_bad_input_is_done_or_refused_in_a_sentence(kind: str) -> None:
    bad = {number: found for number in range(EACH[kind]) if (found := run_case(kind, number))[0] not in GOOD}
    assert not bad, "\n".join(f"{kind} {number}: {outcome}\n{why}" for number, (outcome, why) in bad.items())


def test_a_hang_a_traceback_and_an_execution_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(rng: object) -> None:
        while True:
            pass

    def raised(rng: object) -> None:
        raise IndexError

    def executed(rng: object) -> None:
        runpy.run_path("evil.py")

    for outcome, case in (("hang", hang), ("traceback", raised), ("executed", executed)):
        monkeypatch.setitem(KINDS, outcome, case)
        assert run_case(outcome, 0, seconds=0.2)[0] == outcome
