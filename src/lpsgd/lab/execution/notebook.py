"""What changes while runs are trained, in a notebook: one output of the cell that is replaced."""

from __future__ import annotations

import html
from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

_WIDTH = 100  # characters


class NotebookOutput:
    """As much of rich's Live as is needed here, without ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self) -> None:
        """Make the output, empty."""
        show: Any = import_module("IPython.display").display
        self._handle = show({"text/html": ""}, raw=True, display_id=True)

    def update(self, shown: RenderableType, *, refresh: bool = False) -> None:
        """Replace what is shown."""
        text = StringIO()
        Console(file=text, width=_WIDTH, force_jupyter=False, color_system=None).print(shown)
        if self._handle is not None:
            content = f"<pre>{html.escape(text.getvalue().rstrip())}</pre>"
            self._handle.update({"text/html": content}, raw=True)

    def stop(self) -> None:
        """Show nothing any more: what is to stay is printed."""
        if self._handle is not None:
            self._handle.update({"text/html": ""}, raw=True)
