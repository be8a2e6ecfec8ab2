"""Commands in tests: run one, and have what it printed, or the one sentence by which it is refused."""

import pytest

from rattle.cli.main import main


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> str:
        """What it prints on stdout."""
        self.capsys.readouterr()
        assert main(list(words)) == 0
        return self.capsys.readouterr().out

    def refused(self, *words: str) -> str:
        """The sentence, alone on stderr."""
        self.capsys.readouterr()
        assert main(list(words)) == 2
        said = self.capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("rattle: ")
        assert said.err.count("\n") == 1
        return said.err
