"""Pictures: the main chart of each page, from the report or the run's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..engine import (
    Chart,
    DataTable,
    Figures,
    Ground,
    KeyFigure,
    KeyFigures,
    LaunchLine,
    LaunchLines,
    MemoryLines,
    RankBars,
    RankGrid,
    RooflinePoints,
    Unit,
    causes_of,
    certain_gain,
    clock_of,
    kernels_of,
    quantity,
    step_parts,
)
from . import verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..engine import Block, Calibration, Cell, Document, Selection, TableSet

ChartKind = TypeVar("ChartKind")
A_ROW = 16
"""Ranks beside each other where nothing tells their places on the mesh."""
MOST_LINES = 4
MOST_POINTS = 1000
MOST_BARS = 12
FEW_BARS = 6
MOST_RANKS = 24


def chart_of(document: Document, kind: type[ChartKind]) -> Chart | None:
    """Find the report's first chart of a kind."""
    for part in document.sections:
        for block in part.blocks:
            if isinstance(block, Chart) and isinstance(block.data, kind):
                return block
    return None


def lateness(document: Document) -> Chart | None:
    """Build each rank's own delay per step on the mesh."""
    cost = {int(rank): value for rank, value in Figures(document.values).along("straggler_cost", "rank").items()}
    if not cost:
        return None
    placed = chart_of(document, RankGrid)
    grid = placed.data if placed is not None and isinstance(placed.data, RankGrid) else _in_rows(sorted(cost))
    waited = np.array([[cost.get(rank, np.nan) for rank in row] for row in grid.rank.tolist()], float)
    what = "own delay"
    title = "Own delay of each rank per step, by its place in the mesh"
    return Chart(title, replace(grid, what=what, values_ns=waited, ground=Ground.NOTHING))


def _in_rows(ranks: list[int]) -> RankGrid:
    """Lay ranks out in rows, where their places on the mesh are not known."""
    count = -(-len(ranks) // A_ROW)
    cells = np.full((count, min(A_ROW, len(ranks))), -1)
    cells.flat[: len(ranks)] = ranks
    rows = tuple(f"from rank {line[0]}" for line in cells.tolist())
    return RankGrid("", ("",) * cells.shape[1], rows, cells, np.full(cells.shape, np.nan))


def time_of_ops(tables: TableSet, selection: Selection) -> dict[str, int]:
    """Add up the device time of each op, ns, which has an entry for each of its shapes."""
    total: dict[str, int] = {}
    for op in kernels_of(tables, selection).ops:
        total[op.name] = total.get(op.name, 0) + op.time_ns
    return total


def of_kernels(document: Document, times: Mapping[str, int]) -> tuple[Chart, ...]:
    """Return the ops that take most of the device's time; and the roofline, where the device's roof is known."""
    roof = chart_of(document, RooflinePoints)
    names = sorted(times, key=lambda name: (-times[name], name))[: MOST_BARS if roof is None else FEW_BARS]
    values = tuple(float(times[name]) for name in names)
    bars = RankBars("device time of all ranks and steps", tuple(names), values, (), "compute", is_time=True)
    shown = [Chart("Ops by device time", bars)] if names else []
    if roof is not None:
        shown.append(Chart("Roofline: each op and the limit of the device at its intensity", roof.data))
    return tuple(shown)


def of_host(document: Document, tables: TableSet) -> Chart | None:
    """Set out who waits for its host; where that costs next to nothing or is not known, how far the hosts run ahead.

    A single rank has nobody to be set beside: its own lead over time tells more than one bar.
    """
    waits = idle_for_host(document)
    if waits is not None and waits_notably(document) and len(document.run.ranks) > 1:
        return waits
    return launch_lead(document, tables) or waits


def waits_notably(document: Document) -> bool:
    """Return whether some rank's device waits for its host for a part of the step that is worth a picture."""
    figures = Figures(document.values)
    waited = figures.along("idle_time", "rank", cause="host")
    return max(waited.values(), default=0.0) > verdicts.NOTABLE * sum(value for _, _, value in step_parts(figures))


def idle_for_host(document: Document) -> Chart | None:
    """Set out for each rank how long its device waits for the host; of many, for those that wait longest."""
    figures = Figures(document.values)
    waited = figures.along("idle_time", "rank", cause="host")
    if not waited:
        return None
    mean = sum(waited.values()) / len(waited)
    longest = sorted(waited, key=lambda rank: -waited[rank])[:MOST_RANKS]
    shown = [rank for rank in waited if rank in longest]
    span = sum(value for _, _, value in step_parts(figures))
    apart = verdicts.rank_apart(waited, span)
    bars = RankBars(
        "device idle per step because of the host", tuple(f"rank {rank}" for rank in shown),
        tuple(float(waited[rank]) for rank in shown), (mean,) * len(shown), "idle:host", is_time=True,
        apart=(f"rank {apart}",) if apart is not None else (),
    )  # fmt: skip
    which = f", longest {MOST_RANKS} of {len(waited)}" if len(shown) < len(waited) else ""
    return Chart(f"Idle time of each rank's device because of its host{which}", bars)


def gains(document: Document) -> tuple[Chart, dict[str, str]] | None:
    """Set out what each change that a finding names would save of a step; and the change of each bar's label."""
    shown = [cause.finding for cause in causes_of(document.findings).shown]
    edits = {finding.title: finding for finding in shown if finding.edit and certain_gain(finding) > 0}
    if not edits:
        return None
    values = tuple(finding.saved_ns for finding in edits.values())
    bars = RankBars("time saved per step by this change alone", tuple(edits), values, (), "measured", is_time=True)
    return Chart("Changes worth trying", bars), {label: finding.edit for label, finding in edits.items()}


def launch_lead(document: Document, tables: TableSet) -> Chart | None:
    """Return how far hosts run ahead over time, for the straggler and the ranks whose queue is empty most often."""
    empty = Figures(document.values).along("empty_queue_fraction", "rank")
    late = verdicts.late_rank(document)  # the straggler is always drawn
    worst = sorted((int(rank) for rank in empty), key=lambda rank: (rank != late, -empty[rank], rank))[:MOST_LINES]
    lines = [line for rank in sorted(worst) if (line := _launch_line(tables, rank)) is not None]
    if not lines:
        return None
    begin = min(int(line.time_ns[0]) for line in lines)
    lines = [replace(line, time_ns=line.time_ns - begin) for line in lines]
    return Chart(
        "Time from launch to start of work; when it falls to zero, the device waits for the host",
        LaunchLines(tuple(lines)),
    )


def _launch_line(tables: TableSet, rank: int) -> LaunchLine | None:
    """Return a rank's leads; if there are too many, the minimum of each section, where the device waits."""
    launches = tables.columns("launches", rank)
    started = np.flatnonzero(launches["delay_ns"] >= 0)
    if not len(started):
        return None
    started = started[np.argsort(launches["start_ns"][started], kind="stable")]
    time = np.asarray(clock_of(tables).align(rank, launches["start_ns"][started]))
    lead = np.asarray(launches["delay_ns"][started])
    stretch = max(1, -(-len(lead) // MOST_POINTS))
    begin = np.arange(0, len(lead), stretch)
    least = np.array([low + int(lead[low : low + stretch].argmin()) for low in begin.tolist()], np.int64)
    return LaunchLine(f"rank {rank}", time[least], lead[least])


def memory_over_time(document: Document, learnt: Calibration | None) -> Chart | None:
    """Return the memory curve, with the predicted peak and the device's capacity where they are known."""
    found = chart_of(document, MemoryLines)
    if found is None or not isinstance(found.data, MemoryLines):
        return None
    levels: list[tuple[str, float]] = []
    if learnt is not None:
        predicted = float(learnt.prediction.footprint.total_bytes)
        levels.append((f"predicted peak {quantity(predicted, Unit.BYTES)}", predicted))
    capacity = _capacity(document, learnt)
    if capacity is not None:
        levels.append((f"capacity {quantity(capacity, Unit.BYTES)}", capacity))
    return Chart(found.title, replace(found.data, levels=tuple(levels)))


def _capacity(document: Document, learnt: Calibration | None) -> float | None:
    """Return the bytes of a device: what the trace says of the fullest rank's, or what the planner knows."""
    figures = Figures(document.values)
    free, peak = figures.whole("memory_headroom"), figures.whole("peak_memory")
    if free is not None and free < 1 and peak is not None:
        held = max(figures.whole("peak_reserved_memory") or 0.0, peak)
        return held / (1 - free)  # the headroom is what was never held, over the capacity
    if learnt is not None and np.isfinite(learnt.cluster.memory_bytes):
        return float(learnt.cluster.memory_bytes)
    return None


def bandwidth_of_axes(document: Document) -> KeyFigures | None:
    """Return the achieved bus bandwidth of each axis next to its link's, for the kind of call that moves most bytes."""
    table = next((block for block in blocks_of(document, "collectives") if isinstance(block, DataTable)), None)
    heads = [column.head for column in table.columns] if table is not None else []
    if table is None or not {"axis", "collective", "busbw", "of link", "volume"} <= set(heads):
        return None
    calls = [dict(zip(heads, row, strict=True)) for row in table.rows]
    figures = []
    for axis in dict.fromkeys(str(call["axis"]) for call in calls):
        of_axis = [call for call in calls if str(call["axis"]) == axis and isinstance(call["busbw"], int | float)]
        largest = max(of_axis, key=lambda call: _number(call["volume"]), default=None)
        if largest is None:
            continue
        share = largest["of link"]
        link = f"{quantity(share, Unit.FRACTION)} of the link" if isinstance(share, int | float) else "link unknown"
        unit = table.columns[heads.index("busbw")].unit or Unit.BYTES_PER_SECOND
        value = _number(largest["busbw"])
        figures.append(KeyFigure(f"{axis} bus bandwidth", value, unit, f"{link}, {largest['collective']}"))
    return KeyFigures(tuple(figures)) if figures else None


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


def blocks_of(document: Document, name: str) -> tuple[Block, ...]:
    """Return the blocks of a section of the report."""
    return next((part.blocks for part in document.sections if part.id == name), ())
