"""Location of the corpus of real traces, and its runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from usp_prof.inputs.discovery import discover

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
_NESTED = ("gloo", "single", "odd", "nanogpt-compare")
_NO_TRACES = ("straggler-timelines", *_NESTED)


@cache
def sets() -> list[tuple[str, str]]:
    """List every run of the corpus by folder and name; none if the corpus is missing."""
    if not TRACES.is_dir():
        return []
    paths = [path for path in sorted(TRACES.iterdir()) if path.is_dir() and path.name not in _NO_TRACES]
    paths += [path for name in _NESTED for path in sorted((TRACES / name).iterdir()) if path.is_dir()]
    return [(str(path.relative_to(TRACES)), run.name) for path in paths for run in discover(path).runs]
