"""Public address of the methods of HolisticTraceAnalysis: `from usp_prof.hta import TraceAnalysis`.

The code is in `usp_prof.extras.hta` and is loaded when a name is first used.
"""

from __future__ import annotations

from importlib import import_module

_PUBLIC = ["DeviceType", "TraceAnalysis", "TraceDiff"]


def __getattr__(name: str) -> object:
    """Import a public name where it is defined."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'usp_prof.hta' has no attribute {name!r}")
    return getattr(import_module("usp_prof.extras.hta"), name)
