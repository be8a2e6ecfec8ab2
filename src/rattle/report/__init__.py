"""Reports: run folders become one HTML page. Reads files, knows no torch."""

from rattle.report.page import build_page

__all__ = ["build_page"]
