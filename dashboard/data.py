"""What has been opened and computed? The only functions of the dashboard that keep anything, shared by all sessions.

Runs are those named when the dashboard was started, and are asked for by number: no page or route takes a path.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from dashboard.timeline.store import TimelineStore, load, prepare
from usp_prof import Run, UspProfError, open_run
from usp_prof.gate import check
from usp_prof.gate.comparison import Comparison, compare
from usp_prof.report.build import analyse, build
from usp_prof.tables import clock
from usp_prof.whatif.predict import Prediction, predict, unedited

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.gate.measured import Measured
    from usp_prof.model.edit import Edit
    from usp_prof.model.selection import Selection
    from usp_prof.report.document import Document

PATHS_VARIABLE = "USP_PROF_DASHBOARD_PATHS"
_lock = threading.RLock()


@lru_cache(maxsize=1)
def paths() -> tuple[str, ...]:
    """Give the paths named at the start: after ``--`` on Streamlit's command line, or in the environment."""
    named = json.loads(os.environ.get(PATHS_VARIABLE, "[]"))
    return tuple(named) or tuple(word for word in sys.argv[1:] if not word.startswith("-"))


def run_count() -> int:
    """Count the runs that were named."""
    return len(paths())


@lru_cache(maxsize=8)
def _open(index: int) -> Run:
    return open_run(paths()[index])


def open_numbered(index: int) -> Run:
    """Open a run by its number; the first open reads the traces, later ones cost nothing."""
    if not 0 <= index < run_count():
        raise UspProfError(f"there is no run {index}", hint="usp-prof dashboard PATH [PATH ...]")
    with _lock:
        return _open(index)


def document(index: int, selection: Selection) -> Document:
    """Give the report's document for a part of a run."""
    with _lock:
        return _document(index, selection)


@lru_cache(maxsize=32)
def _document(index: int, selection: Selection) -> Document:
    run = _open(index)
    return build(run.tables, analyse(run.tables, selection), name=run.name, selection=selection)


def comparison(first: int, second: int) -> Comparison:
    """Compare two runs."""
    with _lock:
        return compare([_measured(first), _measured(second)])


@lru_cache(maxsize=8)
def _measured(index: int) -> Measured:
    return check.measured(_open(index), Path(paths()[index]).name)


def prediction(index: int, edits: tuple[Edit, ...]) -> Prediction:
    """Replay a run with changes made."""
    with _lock:
        return _prediction(index, edits)


@lru_cache(maxsize=64)
def _prediction(index: int, edits: tuple[Edit, ...]) -> Prediction:
    return predict(_open(index).tables, edits)


def replay_error(index: int) -> float:
    """Give the largest error of a step when the run is replayed unchanged."""
    with _lock:
        return float(unedited(_open(index).tables).error.max(initial=0.0))


def timeline_store(index: int, progress: Callable[[int, int], None] | None = None) -> TimelineStore:
    """Give a run's prepared timeline, preparing what is missing."""
    run = open_numbered(index)
    with _lock:
        if index not in _stores:
            folder = timeline_folder(run, index)
            prepare(run.tables, folder, progress)
            _stores[index] = load(folder, run.tables.ranks)
        return _stores[index]


_stores: dict[int, TimelineStore] = {}


def is_prepared(index: int) -> bool:
    """Say whether the timeline is there already."""
    return index in _stores


def timeline_steps(index: int) -> list[dict[str, int]]:
    """Give the job's steps on the timeline: first start to last end over ranks."""
    run, store = open_numbered(index), timeline_store(index)
    bounds: dict[int, list[int]] = {}
    for rank in run.tables.ranks:
        steps = run.tables.columns("steps", rank)
        start, end = (
            clock.of(run.tables).align(rank, steps[name]) - store.origin_ns for name in ("start_ns", "end_ns")
        )
        for number, first, last in zip(steps["step"].tolist(), start.tolist(), end.tolist(), strict=True):
            kept = bounds.setdefault(number, [first, last])
            bounds[number] = [min(kept[0], first), max(kept[1], last)]
    return [{"number": n, "start_ns": a, "end_ns": b} for n, (a, b) in sorted(bounds.items())]


def timeline_folder(run: Run, index: int) -> Path:
    """Give the folder where a run's prepared timelines lie, named after what was read."""
    root = Path(os.environ.get("USP_PROF_CACHE") or Path.home() / ".cache" / "usp-prof")
    ranks = run.tables.arrow("ranks").select(["rank", "trace_id", "bytes", "first_ns", "last_ns"])
    stamp = f"{Path(paths()[index]).resolve()} {run.name} {ranks.to_pydict()}"
    return root / "timeline" / blake2b(stamp.encode(), digest_size=16).hexdigest()
