"""Reports: run folders become one HTML page and a live view in the terminal. Reads files, knows no torch."""

from rattle.report.page import build

__all__ = ["build"]
