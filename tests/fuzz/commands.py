"""A command line run inside this process, as a case."""

from rattle.cli.main import main


class Refused(Exception):
    """A command ended with exit code 2."""


def command(words: list[str]) -> None:
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    if code == 2:
        raise Refused
    assert code == 0, f"exit code {code}"
