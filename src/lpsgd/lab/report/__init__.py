"""Showing an analysis: a table for the terminal and a page for the browser."""

from __future__ import annotations

from lpsgd.lab.report.comparison_page import write_page
from lpsgd.lab.report.terminal import render_table

__all__ = ["render_table", "write_page"]
