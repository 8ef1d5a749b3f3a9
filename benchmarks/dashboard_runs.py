"""Runs for the dashboard benchmark, and times of its server without a browser: to prepare a rank, to answer a view.

Runs of many ranks are synthetic. Large timelines are repeated from a recorded run.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import large_trace
import numpy as np
from harness import ROOT, synthesize

from dashboard.timeline.tiles import encode
from usp_prof import open_run
from usp_prof.timeline import overlays, store
from usp_prof.timeline.rows import Slices, rank_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDED = ROOT / "traces" / "recorded-5d"
MANY = 512
"""Ranks of the run for Overview and Ranks; from this number on, the mesh has tp and pp."""
WALLED = 1024
"""Ranks of the run for the wall."""
UNREAD = "unread"
"""Name of the run that is read while others use the dashboard."""
PLAYED, SLOW = 16, 5
"""Number of ranks in the played repair, and the slow rank."""


def tiled(slices: Slices, wanted: int, seed: int) -> Slices:
    """Repeat a rank's slices in time until there are enough, with some jitter per copy."""
    rng = np.random.default_rng(seed)
    span = int((slices.start_ns + slices.dur_ns).max() - slices.start_ns.min()) + 1000
    copies = max(1, -(-wanted // max(len(slices.start_ns), 1)))
    copied = ["dur_ns", "event", "name", "category", *(["level"] if slices.level is not None else [])]
    columns: dict[str, list[Any]] = {name: [] for name in ("start_ns", *copied)}
    offsets = [0]
    shifts = np.arange(copies) * span + rng.integers(0, 900, copies)
    for low, high in zip(slices.offsets[:-1], slices.offsets[1:], strict=True):
        part = slice(int(low), int(high))
        columns["start_ns"].append((slices.start_ns[part][None, :] + shifts[:, None]).ravel())
        for name in copied:
            columns[name].append(np.tile(getattr(slices, name)[part], copies))
        offsets.append(offsets[-1] + copies * int(high - low))
    values_of_column = {name: np.concatenate(parts) for name, parts in columns.items()}
    return replace(slices, offsets=np.array(offsets), **values_of_column)


def made_up(folder: Path, ranks: int) -> Path:
    """Write a small run with this number of ranks, unless it exists."""
    traces = folder / f"run{ranks}"
    if not traces.exists():
        mesh = f"dp={ranks}" if ranks < MANY else f"dp={ranks // 8},tp=4,pp=2"
        synthesize(traces, "--mesh", mesh)
    return traces


def with_slow_rank(folder: Path) -> Path:
    """Write a run of 16 ranks with one slow rank, unless it exists."""
    traces = folder / f"slow{PLAYED}"
    if not traces.exists():
        fault = f"slow_rank:rank={SLOW},factor=1.5"
        synthesize(traces, "--mesh", "dp=2,tp=2,pp=4", "--micro-batches", "8", "--fault", fault)
    return traces


def never_read(folder: Path) -> Path:
    """Write a run of 8 ranks that is in no cache: its seed is new each time."""
    traces = folder / UNREAD
    shutil.rmtree(traces, ignore_errors=True)
    return synthesize(traces, "--mesh", "dp=8", "--events", "1000000", "--seed", str(secrets.randbelow(1_000_000)))


def fill(folder: Path, ranks: int, slices: int) -> Path:
    """Write a synthetic run with this number of ranks and large timelines, unless it exists."""
    traces = made_up(folder, ranks)
    run, recorded = open_run(traces), open_run(RECORDED)
    small = [rank_slices(recorded.tables, rank) for rank in recorded.ranks]

    def write(target: Path) -> None:
        origin = min(int(slices_of_rank.start_ns.min()) for slices_of_rank in small)
        for rank in run.ranks:
            source = small[rank % len(small)]
            big = tiled(replace(source, rows=tuple(replace(row, rank=rank) for row in source.rows)), slices, rank)
            store.write(big, target / f"rank{rank}")
        steps = [(i, origin + i * 10**9, origin + (i + 1) * 10**9) for i in range(20)]
        (target / "run.json").write_text(json.dumps({"steps": steps}), encoding="utf-8")

    run.derived(store.FORM, write)
    run.derived(overlays.FORM, lambda target: overlays.prepare(run.tables, target))
    return traces


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
