"""Sections on steps: their length, where their time goes on each rank, and stragglers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from usp_prof.analyses.breakdown import BreakdownResult
from usp_prof.analyses.step_time import StepTimeResult
from usp_prof.analyses.stragglers import StragglersResult
from usp_prof.charts.inputs import BreakdownRows, HeatMap, Part, RankGrid
from usp_prof.model.metric import Unit
from usp_prof.model.printable import spans
from usp_prof.report.document import Block, Chart, DataTable, data_table
from usp_prof.report.figures import Context, Figures, Key, Number, parts
from usp_prof.report.format import Cell
from usp_prof.report.sections.plain import key_figures, listing_table
from usp_prof.report.sections.summary import where_the_step_goes
from usp_prof.report.verdict import gains_in_messages

_STEPS = 40


def build_step_time(context: Context, _: StepTimeResult) -> list[Block]:
    """Build the job's steps and the map of ranks over steps."""
    blocks: list[Block] = [*key_figures(context, "step_time")]
    steps = context.figures.along("job_step_time", "step")
    if len(steps) > 1:
        between = context.figures.along("step_spread", "step")
        rows = [(step, value, between.get(step)) for step, value in steps.items()]
        columns = {"step": None, "time": Unit.NS, "spread across ranks": Unit.FRACTION}
        blocks.append(data_table("Steps of the job", columns, rows, most=_STEPS))
    heat = heat_map(context.figures)
    if heat is not None:
        blocks.append(Chart("Compute of each rank and step, compared with the median of the step", heat))
    places = rank_grid(context)
    if places is not None:
        blocks.append(Chart("Compute of each rank at its place in the mesh, compared with the median", places))
    return blocks


def rank_grid(context: Context) -> RankGrid | None:
    """Return compute time on the mesh: the largest axis horizontally, the others vertically."""
    topology, compute = context.tables.topology, context.figures.along("compute_time", "rank")
    coordinates_by_rank = {int(rank): topology.coordinates.get(int(rank), {}) for rank in compute}
    if not topology.axes or len(compute) < 2 or not all(coordinates_by_rank.values()):
        return None
    across = max(topology.axes, key=lambda axis: topology.axes[axis])
    down = [axis for axis in topology.axes if axis != across]
    keys = sorted({tuple(place.get(axis, 0) for axis in down) for place in coordinates_by_rank.values()})
    width = 1 + max(place.get(across, 0) for place in coordinates_by_rank.values())
    if width > topology.axes[across]:  # a rank's coordinates are outside the mesh
        return None
    rank = np.full((len(keys), width), -1, np.int64)  # -1: no rank at these coordinates
    values = np.full(rank.shape, np.nan)
    for placed_rank, place in coordinates_by_rank.items():
        at = keys.index(tuple(place.get(axis, 0) for axis in down)), place.get(across, 0)
        if rank[at] >= 0:
            return None
        rank[at], values[at] = placed_rank, compute[placed_rank]
    names = tuple(" ".join(f"{axis} {at}" for axis, at in zip(down, key, strict=True)) for key in keys)
    return RankGrid("compute", tuple(f"{across} {at}" for at in range(width)), names, rank, values)


def heat_map(figures: Figures) -> HeatMap | None:
    """Return compute time by rank and step: collectives equalize step times, compute shows slow ranks."""
    grid = figures.grid("compute_time", "rank", "step")
    ranks = sorted({int(rank) for rank, _ in grid})
    steps = sorted({int(step) for _, step in grid})
    if len(ranks) < 2:
        return None
    values = np.full((len(ranks), len(steps)), np.nan)
    row = {rank: place for place, rank in enumerate(ranks)}
    column = {step: place for place, step in enumerate(steps)}
    for (rank, step), value in grid.items():
        values[row[int(rank)], column[int(step)]] = value
    return HeatMap("compute", tuple(ranks), tuple(steps), values)


# Breakdown: the parts of each rank's step, as bars and as a table.

_RANKS = 64
_BARS = 40


def build_breakdown(context: Context, _: BreakdownResult) -> list[Block]:
    """Build the mean rank's bar, then a row per rank."""
    blocks: list[Block] = []
    mean = where_the_step_goes(context.figures, context.run)
    if mean is not None:
        blocks.append(mean)
    rows = by_rank(context.figures)
    if rows is not None:
        blocks += [_table(rows), Chart("Where each rank's step goes", readable(rows))]
    return blocks


def by_rank(figures: Figures) -> BreakdownRows | None:
    """Return the partition of each rank; missing parts are 0."""
    ranks = [int(rank) for rank in figures.along("compute_time", "rank")]
    if not ranks:
        return None
    parts_of_rank = {rank: {role: (label, value) for label, role, value in parts(figures, rank=rank)} for rank in ranks}
    roles = {role: label for label, role, _ in parts(figures)}
    for of_rank in parts_of_rank.values():
        roles |= {role: label for role, (label, _) in of_rank.items() if role not in roles}
    return BreakdownRows(
        tuple(f"rank {rank}" for rank in ranks),
        tuple(
            Part(label, role, tuple(float(parts_of_rank[rank].get(role, ("", 0))[1]) for rank in ranks))
            for role, label in roles.items()
        ),
    )


def readable(rows: BreakdownRows) -> BreakdownRows:
    """If there are too many rows, keep those that differ most from the median, and the mean of the others."""
    if len(rows.labels) <= _BARS:
        return rows
    values = np.array([part.values_ns for part in rows.parts])  # parts by ranks
    # Distance of each rank's parts from the median rank's, summed over parts.
    deviation = np.abs(values - np.median(values, axis=1, keepdims=True)).sum(axis=0)
    outlier_places = np.sort(np.argsort(-deviation, kind="stable")[: _BARS - 1])
    other_places = np.setdiff1d(np.arange(len(rows.labels)), outlier_places)
    return BreakdownRows(
        (f"mean of {len(other_places)} others", *(rows.labels[place] for place in outlier_places)),
        tuple(
            Part(
                part.label,
                part.role,
                (
                    float(values_of_part[other_places].mean()),
                    *(float(value_ns) for value_ns in values_of_part[outlier_places]),
                ),
            )
            for part, values_of_part in zip(rows.parts, values, strict=True)
        ),
    )


def _table(rows: BreakdownRows) -> DataTable:
    columns = {"": None, **{part.label: Unit.NS for part in rows.parts}}
    cells: list[tuple[Cell, ...]] = [
        (label, *(int(part.values_ns[place]) for part in rows.parts)) for place, label in enumerate(rows.labels)
    ]
    return data_table("By rank", columns, cells, most=_RANKS)


# Stragglers: the ranks that others wait for, their cost, and the cause.

_LATENESS = ("rank", "axis", "calls", "late", "late_by_ns", "own_ns", "slowdown")
_LATENESS_HEADS = {
    "late": "arrives last", "late_by_ns": "later than second-last", "own_ns": "own delay",
    "slowdown": "compute slowdown",
}  # fmt: skip


def build_stragglers(context: Context, result: StragglersResult) -> list[Block]:
    """Build the stragglers with their evidence, then the arrivals of all ranks."""
    blocks: list[Block] = [*key_figures(context, "stragglers")]
    gains = context.figures.along("repair_gain", "rank")
    if result.culprits:
        blocks += [_culprits(result, gains), _evidence(result)]
    if in_messages := gains_in_messages(context.figures):
        columns = {"rank": None, "repair saves": Unit.FRACTION}
        blocks.append(data_table("Late in sends and receives", columns, [*in_messages.items()]))
    if result.lateness:
        latest = sorted(result.lateness, key=lambda late: (-late.own_ns, -late.late_by_ns, late.rank))
        listing = replace(result, lateness=tuple(latest)).listing()
        blocks.append(
            listing_table(
                listing, "Arrivals by rank and axis over all steps, latest first", _LATENESS, _LATENESS_HEADS, rows=32
            )
        )
    return blocks


def _culprits(result: StragglersResult, gain: Mapping[Key, Number]) -> DataTable:
    columns = {
        "rank": None, "axis": None, "cause": None, "late by, per step": Unit.NS, "repair saves": Unit.FRACTION,
        "compute slowdown": Unit.RATIO, "steps": None,
    }  # fmt: skip
    rows = [
        (c.rank, c.axis, str(c.why), c.cost_ns, gain.get(c.rank), c.slowdown, spans(sorted(c.steps)))
        for c in result.culprits
    ]
    return data_table("Stragglers", columns, rows)


def _evidence(result: StragglersResult) -> DataTable:
    parts = sorted({part for culprit in result.culprits for part in culprit.evidence})
    rows = [(c.rank, *(c.evidence.get(part) for part in parts)) for c in result.culprits]
    columns = {"rank": None, **dict.fromkeys(parts, Unit.NS)}
    return data_table("Own time beyond the median of peers, sum over late steps", columns, rows)
