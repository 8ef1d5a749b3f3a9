"""Runs for the dashboard benchmark: synthetic ones of many ranks, and large timelines repeated from a recorded run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # `dashboard` is the package below, not the script in this folder

from usp_prof import open_run  # noqa: E402
from usp_prof.timeline import overlays, store  # noqa: E402 - after the path is set
from usp_prof.timeline.rows import Slices, rank_slices  # noqa: E402

RECORDED = ROOT / "traces" / "recorded-5d"
MANY = 512
"""Ranks of the run for Overview and Ranks; from this number on, the mesh has tp and pp."""
WALLED = 1024
"""Ranks of the run for the wall."""
PLAYED, SLOW = 16, 5
"""Number of ranks in the played repair, and the slow rank."""


def tiled(slices: Slices, wanted: int, seed: int) -> Slices:
    """Repeat a rank's slices in time until there are enough, with some jitter per copy."""
    rng = np.random.default_rng(seed)
    span = int((slices.start_ns + slices.dur_ns).max() - slices.start_ns.min()) + 1000
    copies = max(1, -(-wanted // max(len(slices.start_ns), 1)))
    columns: dict[str, list[Any]] = {name: [] for name in ("start_ns", "dur_ns", "event", "name", "category")}
    offsets = [0]
    shifts = np.arange(copies) * span + rng.integers(0, 900, copies)
    for low, high in zip(slices.offsets[:-1], slices.offsets[1:], strict=True):
        part = slice(int(low), int(high))
        columns["start_ns"].append((slices.start_ns[part][None, :] + shifts[:, None]).ravel())
        for name in ("dur_ns", "event", "name", "category"):
            columns[name].append(np.tile(getattr(slices, name)[part], copies))
        offsets.append(offsets[-1] + copies * int(high - low))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return replace(slices, offsets=np.array(offsets), **joined)


def made_up(folder: Path, ranks: int) -> Path:
    """Write a small run with this number of ranks, unless it exists."""
    traces = folder / f"run{ranks}"
    if not traces.exists():
        mesh = f"dp={ranks}" if ranks < MANY else f"dp={ranks // 8},tp=4,pp=2"
        command = [sys.executable, "-m", "usp_prof.cli.app", "synth", str(traces), "--mesh", mesh, "-q"]
        subprocess.run(command, check=True, cwd=ROOT)
    return traces


def with_slow_rank(folder: Path) -> Path:
    """Write a run of 16 ranks with one slow rank, unless it exists."""
    traces = folder / f"slow{PLAYED}"
    if not traces.exists():
        described = ("--mesh", "dp=2,tp=2,pp=4", "--micro-batches", "8", "--fault", f"slow_rank:rank={SLOW},factor=1.5")
        command = [sys.executable, "-m", "usp_prof.cli.app", "synth", str(traces), *described, "-q"]
        subprocess.run(command, check=True, cwd=ROOT)
    return traces


def fill(folder: Path, ranks: int, slices: int) -> Path:
    """Write a synthetic run with this number of ranks and large timelines, unless it exists."""
    traces = made_up(folder, ranks)
    run, recorded = open_run(traces), open_run(RECORDED)
    small = [rank_slices(recorded.tables, rank) for rank in recorded.ranks]

    def write(target: Path) -> None:
        origin = min(int(one.start_ns.min()) for one in small)
        for rank in run.ranks:
            mine = small[rank % len(small)]
            big = tiled(replace(mine, rows=tuple(replace(row, rank=rank) for row in mine.rows)), slices, rank)
            store.write(big, target / f"rank{rank}")
        steps = [(i, origin + i * 10**9, origin + (i + 1) * 10**9) for i in range(20)]
        (target / "run.json").write_text(json.dumps({"steps": steps}), encoding="utf-8")

    run.derived(store.FORM, write)
    run.derived(overlays.FORM, lambda target: overlays.prepare(run.tables, target))
    return traces
