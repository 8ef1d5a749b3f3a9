"""usp-prof: where the step of a training run goes, which rank or link is at fault, and what a change would save.

The public API: `open_run` reads a folder of traces and returns a `Run`, whose methods answer questions; `compare`,
`check`, `plan` and `memory` take runs or paths. Expected errors are a `UspProfError` with a hint. Names are imported at
first use, so `import usp_prof` is fast.
"""

from __future__ import annotations

from importlib import import_module

from usp_prof._version import __version__

__all__ = ["Run", "UspProfError", "__version__", "check", "compare", "memory", "open_run", "plan"]

_HOMES = {
    "Run": "usp_prof.run",
    "UspProfError": "usp_prof.model.errors",
    "check": "usp_prof.functions",
    "compare": "usp_prof.functions",
    "memory": "usp_prof.extras.planner.functions",
    "open_run": "usp_prof.run",
    "plan": "usp_prof.extras.planner.functions",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'usp_prof' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return only the public names."""
    return sorted(__all__)
