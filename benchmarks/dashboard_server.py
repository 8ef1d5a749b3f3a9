"""The dashboard's server without a browser: time to prepare a rank, and to answer a view."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import large_trace
import numpy as np
from dashboard_runs import RECORDED

from usp_prof import open_run
from usp_prof.timeline import overlays, store
from usp_prof.timeline.tiles import encode

if TYPE_CHECKING:
    from collections.abc import Sequence


def prepare_one(folder: Path, slices: int) -> tuple[int, float, float]:
    """Prepare one rank from its tables; return its number of events, CPU seconds and wall seconds."""
    traces = folder / "one"
    traces.mkdir(exist_ok=True)
    if not (traces / "rank0.json").exists():
        large_trace.build(RECORDED / "rank0.json.gz", traces / "rank0.json", events=slices)
    tables = open_run(traces).tables
    for name in ("events", "activities", "steps"):
        tables.columns(name, 0)
    with tempfile.TemporaryDirectory() as target:
        began, wall = time.process_time(), time.perf_counter()
        store.prepare(tables, Path(target) / "made")
        busy, passed = time.process_time() - began, time.perf_counter() - wall
    return len(tables.columns("events", 0)), busy, passed


def tiles(traces: Path, zooms: Sequence[float]) -> tuple[list[float], list[float]]:
    """Request tiles of up to 128 rows at all zooms, in this process; return wall and CPU times in ms."""
    run, times, busy = open_run(traces), [], []
    folder, over = (run.derived(form, _never) for form in (store.FORM, overlays.FORM))
    lines = store.load(folder, run.ranks, over)
    rows = [(rank, i) for rank in lines.ranks for i, row in enumerate(lines.rows(rank)) if row.kind != "host"]
    for share in zooms:
        for shift in np.linspace(0, 0.9, 8):
            start = int(lines.span_ns * shift * (1 - share))
            end = start + max(int(lines.span_ns * share), 1000)
            began, spent = time.perf_counter(), time.process_time()
            encode(lines.view(rows[:128], start, end, (end - start) / 1600), start, end, 1600)
            times.append(1e3 * (time.perf_counter() - began))
            busy.append(1e3 * (time.process_time() - spent))
    return times, busy


def _never(_: Path) -> None:
    raise SystemExit("the timelines are not there: run without --folder, or with another one")
