"""Traces stripped to device activity: copies of a run as recorded in production, on all ranks or on some."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.analyses import breakdown, step_time, stragglers
from usp_prof.columns.table import Columns
from usp_prof.run import open_run
from usp_prof.tables.catalog import RUN_TABLES, SCHEMAS
from usp_prof.tables.step_cuts.boundaries import recut, with_host
from usp_prof.tables.table_set import MemorySource, TableSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from usp_prof.run import Run

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})


def device_only(
    run: Path,
    folder: Path,
    *,
    keep: Collection[str] = DEVICE,
    complete_ranks: Collection[int] = (),
    chosen: Callable[[int, dict[str, Any]], bool] | None = None,
) -> Run:
    """Copy the traces under a path with events of these categories only; `complete_ranks` keep everything.

    On every rank, `chosen(rank, event)` drops more events. No manifest is copied.
    """
    for path in sorted(run.rglob("*.json*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        trace = json.loads(text, strict=False)
        if not isinstance(trace, dict) or "traceEvents" not in trace:
            continue
        rank = (trace.get("distributedInfo") or {}).get("rank", 0)
        trace.pop("usp_prof", None)
        events = trace["traceEvents"]
        if rank not in complete_ranks:
            events = [event for event in events if event.get("ph") == "M" or event.get("cat") in keep]
        if chosen is not None:
            events = [event for event in events if event.get("ph") == "M" or chosen(rank, event)]
        out = folder / str(path.relative_to(run)).removesuffix(".gz")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(trace | {"traceEvents": events}), encoding="utf-8")
    return open_run(folder, cache_dir=folder.parent / "stripped-cache")


def windows(run: Run) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Return each rank's step numbers, starts and ends."""
    steps = {rank: run.tables.columns("steps", rank) for rank in run.ranks}
    return {
        rank: (own["step"].tolist(), own["start_ns"].tolist(), own["end_ns"].tolist()) for rank, own in steps.items()
    }


def lengths(run: Run) -> dict[int, list[int]]:
    """Return the step lengths of each rank."""
    return {rank: (np.array(end) - np.array(start)).tolist() for rank, (_, start, end) in windows(run).items()}


def sources(run: Run) -> set[str]:
    """Return the sources of steps, over all ranks."""
    return {source for rank in run.ranks for source in run.tables.columns("steps", rank)["source"].tolist()}


def within(full: Run, stripped: Run) -> TableSet:
    """Return the full run's tables, cut at the windows of the stripped one."""
    cut = {}
    for rank in full.ranks:
        source = MemorySource({s.name: full.tables.arrow(s.name, [rank]) for s in SCHEMAS if s.name not in RUN_TABLES})
        steps = Columns(stripped.tables.view("steps", rank))
        cut[rank] = recut(source, rank, with_host(source, steps["step"], steps["start_ns"], steps["end_ns"], "calls"))
    return TableSet(cut, manifest=full.tables.manifest, topology=full.tables.topology)


def totals(tables: TableSet) -> dict[str, float]:
    """Return the partition's parts; causes of idle time are merged, because they are unknown without a host."""
    mean_ns = breakdown.compute(tables).mean_ns()
    busy = {role: ns for role, ns in mean_ns.items() if not role.startswith("idle")}
    return busy | {"idle": sum(ns for role, ns in mean_ns.items() if role.startswith("idle"))}


def median_step(tables: TableSet) -> float:
    """Return the median step length over all ranks."""
    return float(np.median(step_time.compute(tables).length_ns))


def culprits(tables: TableSet) -> list[int]:
    """Return the blamed ranks, costliest first."""
    return [culprit.rank for culprit in stragglers.compute(tables).culprits]
