"""Reports: run folders become one HTML page. Reads files, knows no torch."""

from rattle.report.page import build

__all__ = ["build"]
