"""Pictures: the main chart of each page, from the report or the run's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from usp_prof.api import sentences
from usp_prof.charts.inputs import (
    AxisCommunication,
    Ground,
    LaunchLine,
    LaunchLines,
    MemoryLines,
    RankBars,
    RankGrid,
    RooflinePoints,
)
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.findings.causes import causes_of
from usp_prof.model.edit import parse_edit
from usp_prof.model.finding import Basis
from usp_prof.model.metric import Unit
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import Block, Chart, DataTable, Document, KeyFigure, KeyFigures, data_table
from usp_prof.report.figures import Figures
from usp_prof.report.figures import parts as step_parts
from usp_prof.report.format import Cell, quantity
from usp_prof.report.verdict import NOTABLE, certain_gain, saving
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet

from . import verdicts

A_ROW = 16
"""Ranks per row if their places in the mesh are unknown."""
MOST_LINES = 4
MOST_POINTS = 1000
MOST_BARS = 12
FEW_BARS = 6
"""Ops above a roofline, so that both are on the first screen."""
MOST_RANKS = 24
MOST_AXES = MOST_LATE = 6


def charts_of_kind(document: Document, kind: type) -> list[Chart]:
    """Return the report's charts whose input has this type, in order."""
    blocks = (block for part in document.sections for block in part.blocks)
    return [block for block in blocks if isinstance(block, Chart) and isinstance(block.data, kind)]


def chart_of(document: Document, kind: type) -> Chart | None:
    """Return the report's first chart whose input has this type."""
    return next(iter(charts_of_kind(document, kind)), None)


def axes_by_exposure(document: Document) -> Chart | None:
    """Return the report's chart of communication by axis, most exposed axis first like the key figures."""
    shown = chart_of(document, AxisCommunication)
    if shown is None or not isinstance(shown.data, AxisCommunication):
        return None
    order = sorted(range(len(shown.data.axes)), key=lambda place: -shown.data.exposed_ns[place])
    columns = {
        field.name: tuple(getattr(shown.data, field.name)[place] for place in order) for field in fields(shown.data)
    }
    return Chart(shown.title, AxisCommunication(**columns))


def lateness(document: Document) -> Chart | None:
    """Build each rank's own delay per step on the mesh; None if no rank delays the others notably."""
    figures = Figures(document.values)
    if not sentences.is_any_rank_late(figures):
        return None
    cost = {int(rank): value for rank, value in figures.along("straggler_cost", "rank").items()}
    mesh_chart = chart_of(document, RankGrid)
    grid = (
        mesh_chart.data if mesh_chart is not None and isinstance(mesh_chart.data, RankGrid) else _in_rows(sorted(cost))
    )
    waited = np.array([[cost.get(rank, np.nan) for rank in row] for row in grid.rank.tolist()], float)
    quantity_name = "own delay"
    title = "Own delay of each rank per step" + (", by its place in the mesh" if mesh_chart is not None else "")
    return Chart(title, replace(grid, quantity=quantity_name, values_ns=waited, ground=Ground.NOTHING))


def _in_rows(ranks: list[int]) -> RankGrid:
    """Arrange ranks in rows if their places in the mesh are unknown."""
    count = -(-len(ranks) // A_ROW)
    cells = np.full((count, min(A_ROW, len(ranks))), -1)
    cells.flat[: len(ranks)] = ranks
    rows = tuple(f"from rank {line[0]}" if count > 1 else "" for line in cells.tolist())
    return RankGrid("", ("",) * cells.shape[1], rows, cells, np.full(cells.shape, np.nan))


def of_kernels(document: Document, times: Mapping[str, int]) -> tuple[Chart, ...]:
    """Draw the ops with the most device time, and the roofline if the device's peaks are known."""
    roof = chart_of(document, RooflinePoints)
    names = sorted(times, key=lambda name: (-times[name], name))[: MOST_BARS if roof is None else FEW_BARS]
    values = tuple(float(times[name]) for name in names)
    total_ns = sum(times.values())
    texts = tuple(quantity(time_ns / total_ns, Unit.FRACTION) for time_ns in values)
    bars = RankBars("device time, all ranks and steps", tuple(names), values, (), "compute", Unit.NS, texts=texts)
    shown = [Chart("Ops by device time", bars)] if names else []
    if roof is not None:
        shown.append(Chart("Roofline, labeled with the device time that an op would save at the limit", roof.data))
    return tuple(shown)


def of_host(document: Document, tables: TableSet) -> Chart | None:
    """Draw the idle time because of the host; if it is negligible or unknown, or for one rank, the launch lead."""
    waits = idle_for_host(document)
    if waits is not None and waits_notably(document) and len(document.run.ranks) > 1:
        return waits
    return launch_lead(document, tables) or waits


def waits_notably(document: Document) -> bool:
    """Return whether a rank's device waits for its host for a notable part of the step."""
    figures = Figures(document.values)
    waited = verdicts.idle_for_host(figures)
    return max(waited.values(), default=0.0) > NOTABLE * sum(value for _, _, value in step_parts(figures))


def idle_for_host(document: Document) -> Chart | None:
    """Draw how long each rank's device is idle because of its host; of many ranks those that are idle longest first."""
    figures = Figures(document.values)
    waited = verdicts.idle_for_host(figures)
    if not waited:
        return None
    mean = sum(waited.values()) / len(waited)
    longest = sorted(waited, key=lambda rank: -waited[rank])[:MOST_RANKS]
    shown = longest if len(longest) < len(waited) else list(waited)
    apart = verdicts.ranks_apart(waited, sum(value for _, _, value in step_parts(figures)))
    bars = RankBars(
        "device idle per step because of the host", tuple(f"rank {rank}" for rank in shown),
        tuple(float(waited[rank]) for rank in shown), (mean,) * len(shown), "idle:host", Unit.NS,
        apart=tuple(f"rank {rank}" for rank in apart),
    )  # fmt: skip
    which = f", longest {MOST_RANKS} of {len(waited)}" if len(shown) < len(waited) else ""
    return Chart(f"Idle time of each rank's device because of its host{which}", bars)


def gains(document: Document) -> tuple[Chart, dict[str, str]] | None:
    """Draw the share of the step that the change of each finding saves; also return the edit of each bar's label."""
    shown = [cause.finding for cause in causes_of(document.findings).shown]
    edits = {
        whatif_answer.in_words(parse_edit(finding.edit)): finding
        for finding in shown
        if finding.edit and (certain_gain(finding) > 0 or finding.basis is Basis.BOUND)
    }
    if not edits:
        return None
    bars = RankBars(
        "saved share of the step, by this change alone", tuple(edits),
        tuple(finding.gain_fraction for finding in edits.values()), (), "measured", Unit.FRACTION,
        texts=tuple(saving(finding) for finding in edits.values()),
    )  # fmt: skip
    return Chart("Changes that save time, most important first", bars), {
        label: finding.edit for label, finding in edits.items()
    }


def launch_lead(document: Document, tables: TableSet) -> Chart | None:
    """Draw the launch lead over time, for the straggler and the ranks whose queue is empty most often."""
    empty = Figures(document.values).along("empty_queue_fraction", "rank")
    late = document.verdict.straggler  # the straggler is always drawn
    worst = sorted((int(rank) for rank in empty), key=lambda rank: (rank != late, -empty[rank], rank))[:MOST_LINES]
    lines = [line for rank in sorted(worst) if (line := _launch_line(tables, rank)) is not None]
    if not lines:
        return None
    begin = min(int(line.time_ns[0]) for line in lines)
    lines = [replace(line, time_ns=line.time_ns - begin) for line in lines]
    return Chart(
        "Time from launch to start of work; at zero, the device waits for the host",
        LaunchLines(tuple(lines)),
    )


def _launch_line(tables: TableSet, rank: int) -> LaunchLine | None:
    """Return a rank's launch leads; of too many, the minimum of each section, where the device waits."""
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


def memory_over_time(document: Document, calibration: Calibration | None) -> Chart | None:
    """Return the memory curve, with the predicted peak and the device's capacity where they are known."""
    measured = chart_of(document, MemoryLines)
    if measured is None or not isinstance(measured.data, MemoryLines):
        return None
    levels: list[tuple[str, float]] = []
    if calibration is not None:
        predicted = float(calibration.prediction.footprint.total_bytes)
        levels.append((_predicted_peak(predicted, Figures(document.values).overall("peak_memory")), predicted))
    capacity = _capacity(document, calibration)
    if capacity is not None:
        levels.append((f"capacity {quantity(capacity, Unit.BYTES)}", capacity))
    return Chart(measured.title, replace(measured.data, levels=tuple(levels)))


def _predicted_peak(predicted: float, measured: float | None) -> str:
    """Return the predicted peak with its difference from the measured one."""
    text = f"predicted peak {quantity(predicted, Unit.BYTES)}"
    if not measured:
        return text
    off = predicted / measured - 1
    return f"{text}, {quantity(abs(off), Unit.FRACTION)} {'below' if off < 0 else 'above'} the measured one"


def _capacity(document: Document, calibration: Calibration | None) -> float | None:
    """Return the bytes of the fullest rank's device, from the trace or from the planner."""
    figures = Figures(document.values)
    free, peak = figures.overall("memory_headroom"), figures.overall("peak_memory")
    if free is not None and free < 1 and peak is not None:
        held = max(figures.overall("peak_reserved_memory") or 0.0, peak)
        return held / (1 - free)  # the headroom is what was never held, over the capacity
    if calibration is not None and np.isfinite(calibration.cluster.memory_bytes):
        return float(calibration.cluster.memory_bytes)
    return None


def bandwidth_of_axes(document: Document) -> KeyFigures | None:
    """Return each axis' achieved bus bandwidth, its share of the link, and its straggler, most exposed axis first.

    The bandwidth is that of the collective that moves most bytes.
    """
    calls = _calls(document)
    figures = Figures(document.values)
    exposed, waited = (figures.along(metric, "axis") for metric in ("exposed_comm_time", "wait_time"))
    # The straggler that costs most on each axis that has one.
    straggler_of_axis = {late.axis: late.rank for late in reversed(document.verdict.late_ranks)}
    key_figures = []
    for axis in sorted(map(str, exposed), key=lambda axis: -exposed[axis])[:MOST_AXES]:
        measured = [call for call in calls if str(call["axis"]) == axis and isinstance(call.get("busbw"), int | float)]
        largest = max(measured, key=lambda call: _number(call["volume"]), default=None)
        notes = ["unknown without message sizes"] if largest is None else [_messages(largest), *_link(largest)]
        if waited.get(axis):
            longest = f", longest for rank {straggler_of_axis[axis]}" if axis in straggler_of_axis else ""
            notes.append(f"ranks wait {quantity(waited[axis], Unit.NS)} per step{longest}")
        label = f"{'unknown axis' if axis == verdicts.UNKNOWN_AXIS else axis} bus bandwidth"
        value = _number(largest["busbw"]) if largest is not None else None
        key_figures.append(KeyFigure(label, value, Unit.BYTES_PER_SECOND, "; ".join(notes)))
    return KeyFigures(tuple(key_figures)) if key_figures else None


def _calls(document: Document) -> list[dict[str, Cell]]:
    """Return the rows of the table of calls by axis, kind and size."""
    table = next((block for block in blocks_of(document, "collectives") if isinstance(block, DataTable)), None)
    if table is None:
        return []
    heads = [column.head for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def unknown_links(document: Document) -> str:
    """Describe the axes whose link has an unknown peak, so that no share of it is shown; empty without any."""
    calls = _calls(document)
    measured = dict.fromkeys(str(call["axis"]) for call in calls if isinstance(call.get("busbw"), int | float))
    with_share = {str(call["axis"]) for call in calls if _link(call)}
    unknown = [axis for axis in measured if axis not in with_share]
    if not unknown:
        return ""
    if not with_share:
        return "The peak bandwidth of this device's link is unknown, so shares of it are not shown."
    return f"Calls on {' and '.join(unknown)} cross nodes; the peak of that link is unknown, so no share is shown."


def _messages(call: Mapping[str, Cell]) -> str:
    """Return the collective and the size of its messages: small ones cannot reach the bandwidth of the link."""
    size = call.get("up to")
    return (
        f"{call['collective']} of up to {quantity(_number(size), Unit.BYTES)}"
        if _number(size) > 0
        else str(call["collective"])
    )


def _link(call: Mapping[str, Cell]) -> list[str]:
    """Return the share of the link that a call reaches, if the link is known."""
    share = call.get("of link")
    return [f"{quantity(share, Unit.FRACTION)} of the link"] if isinstance(share, int | float) else []


def late_ranks(document: Document) -> DataTable | None:
    """List the ranks that others wait for longest; a rank that is slow without ever being last has no share."""
    late = document.verdict.late_ranks[:MOST_LATE]
    columns = {"rank": None, "axis": None, "delay": Unit.NS, "last in": Unit.FRACTION, "cause": None}
    rows = [(rank.rank, rank.axis, rank.late_ns, rank.late_fraction or None, rank.why) for rank in late]
    return data_table("Ranks that others wait for in collectives, per step", columns, rows) if rows else None


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


def blocks_of(document: Document, name: str) -> tuple[Block, ...]:
    """Return the blocks of a section of the report."""
    return next((part.blocks for part in document.sections if part.id == name), ())
