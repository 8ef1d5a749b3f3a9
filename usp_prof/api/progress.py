"""Progress of reading in a notebook: one line with a bar, shown once reading takes longer than a moment."""

from __future__ import annotations

import sys
import time
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MOMENT_S = 1.0
_REDRAW_S = 0.1


def notebook_progress() -> Callable[[int, int, str], None] | None:
    """Give what `open_run` calls with bytes done, bytes in all and a file; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = import_module("IPython.display")

    begun = shown = time.monotonic()
    handle: Any = None

    def show(done: int, total: int, name: str) -> None:
        nonlocal shown, handle
        now = time.monotonic()
        if now - begun < _MOMENT_S or (now - shown < _REDRAW_S and done < total):
            return
        shown = now
        text = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        html = display.HTML(
            f'<progress value="{done}" max="{max(total, 1)}"></progress> reading {escape(name)}, {text}'
        )
        if done >= total:
            html = display.HTML(f"<small>read {total / 1e6:,.0f} MB in {now - begun:.1f} s</small>")
        if handle is None:
            handle = display.display(html, display_id=True)
        else:
            handle.update(html)

    return show
