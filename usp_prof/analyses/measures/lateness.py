"""Lateness of a rank: its own time, part by part, beside its peers', and the cause where a part covers the cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.analyses.measures import arrivals, op_work, partition
from usp_prof.analyses.measures.partition import CAUSES
from usp_prof.analyses.measures.partition import Cause as Idle
from usp_prof.columns.rows import first_rows, lookup, numbered, rows_of
from usp_prof.model.selection import EVERYTHING
from usp_prof.tables import calls as call_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from usp_prof.analyses.measures.partition import Partition
    from usp_prof.tables.table_set import TableSet

COVERS = 0.5
"""Share of the cost that a part's excess must reach to be called the cause."""


class Why(StrEnum):
    """Causes of lateness, as far as traces can show them."""

    SLOW_COMPUTE = "slow compute"
    MORE_WORK = "more work"
    HOST = "host"
    LATE_INPUT = "late input"
    SLOW_LINK = "slow link"
    COPIES = "copies"
    UNKNOWN = "unknown"


_OWN = (Why.SLOW_COMPUTE, Why.SLOW_LINK, Why.COPIES, Why.LATE_INPUT, Why.HOST)


@dataclass(frozen=True, slots=True, eq=False)
class OwnTime:
    """Per (rank, step) row of the partition: a column for each part of the time that is not waiting for others."""

    parts: Partition
    columns: NDArray[np.int64]
    kernels: NDArray[np.int64]
    flop: NDArray[np.float64]
    """What the ops of known shape must compute; 0 where no shapes were recorded."""

    @property
    def total(self) -> NDArray[np.int64]:
        """All own time of a rank's step."""
        return np.asarray(self.columns.sum(axis=1))


def own_time(tables: TableSet, parts: Partition) -> OwnTime:
    """Divide each rank's steps into own time: compute, transfers, copies, input, host."""
    columns, kernels = np.zeros((len(parts.rank), len(_OWN)), np.int64), np.zeros(len(parts.rank), np.int64)
    host = (CAUSES.index(Idle.HOST), CAUSES.index(Idle.SYNC), CAUSES.index(Idle.OTHER))
    for rank in np.unique(parts.rank).tolist():
        mine = np.flatnonzero(parts.rank == rank)
        start, end = parts.start[mine], parts.end[mine]
        stalled = (arrivals.stalls(tables, rank) - partition.sets_of(tables, rank).bubble).within(start, end)
        columns[mine, 0] = parts.compute[mine]
        columns[mine, 1] = np.maximum(parts.exposed[mine].sum(axis=1) - stalled, 0)
        columns[mine, 2] = parts.memcpy[mine]
        columns[mine, 3] = parts.idle[mine, CAUSES.index(Idle.INPUT)]
        columns[mine, 4] = sum(parts.idle[mine, column] for column in host)
        activities = tables.columns("activities", rank)
        begun = np.sort(activities["start_ns"][activities.matches("kind", "compute")])
        kernels[mine] = np.searchsorted(begun, end) - np.searchsorted(begun, start)
    return OwnTime(parts, columns, kernels, _flop(tables, parts))


def _flop(tables: TableSet, parts: Partition) -> NDArray[np.float64]:
    """Add up per (rank, step) the FLOP of the ops, each op once however many kernels it launched."""
    found = np.zeros(len(parts.rank))
    for rank in np.unique(parts.rank).tolist():
        mine = np.flatnonzero(parts.rank == rank)
        done = op_work.of_rank(tables, rank, EVERYTHING)
        first = first_rows(done.owner)
        first = first[(done.owner[first] >= 0) & (done.kind[first] >= 0)]
        flop_of_kind = [kind.cost.flop if kind.cost is not None else 0.0 for kind in done.kinds]
        steps, place = numbered(parts.step[mine])
        step = rows_of(steps, done.step[first])
        inside = step >= 0
        flop = lookup(flop_of_kind, done.kind[first[inside]], missing=0.0)
        found[mine] = np.bincount(step[inside], flop, len(steps))[place]
    return found


def peers_of(tables: TableSet) -> dict[int, tuple[int, ...]]:
    """Give for each rank those that do the same work: same pipeline stage and, where known, same place on `cp`."""
    keys: dict[int, tuple[object, ...]] = {}
    for rank in tables.ranks:
        place = tables.topology.coordinates.get(rank)
        if place is not None and len(tables.topology.coordinates) >= len(tables.ranks):
            keys[rank] = tuple(place.get(axis, 0) for axis in ("pp", "cp"))
        else:
            keys[rank] = tuple(np.unique(tables.columns("actions", rank)["stage"]).tolist())
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank in tables.ranks:
        alike.setdefault(keys[rank], []).append(rank)
    return {rank: tuple(other for other in alike[keys[rank]] if other != rank) for rank in tables.ranks}


def excess_by_row(own: OwnTime, peers: Mapping[int, tuple[int, ...]]) -> NDArray[np.int64]:
    """Give for each (rank, step) how much longer its own parts take than its peers' medians; -1 without peers."""
    usual = peer_medians(own.parts, peers, own.columns)
    over = np.maximum(own.columns - usual, 0).sum(axis=1)
    return np.where(np.isnan(over), -1, over).astype(np.int64)


def peer_medians(parts: Partition, peers: Mapping[int, tuple[int, ...]], figures: NDArray[Any]) -> NDArray[np.float64]:
    """Give for each (rank, step), a row of `figures`, the medians over its peers in that step; NaN without any."""
    ranks, rank = np.unique(parts.rank, return_inverse=True)
    steps, step = np.unique(parts.step, return_inverse=True)
    row_of = np.full((len(ranks), len(steps)), -1, np.int64)
    row_of[rank, step] = np.arange(len(rank))
    found = np.full(figures.shape, np.nan)
    for place, own in enumerate(ranks.tolist()):
        mine, theirs = row_of[place], row_of[np.isin(ranks, peers[own])]
        number = np.where(mine >= 0, (theirs >= 0).sum(axis=0), 0)
        for count in np.unique(number[number > 0]).tolist():  # steps with as many peers are looked at together
            there = np.flatnonzero(number == count)
            rows = np.sort(theirs[:, there], axis=0)[-count:]  # those that are missing are sorted to the front
            found[mine[there]] = np.median(figures[rows], axis=0)
    return found


def slow_axis(tables: TableSet, rank: int, peers: tuple[int, ...], steps: NDArray[np.int64]) -> str:
    """Name the axis whose transfers take a rank longest beyond its peers'; empty when none does."""
    calls, parts = call_table.of(tables).columns(), call_table.of(tables).part_columns()
    chosen = np.isin(calls["step"][parts["call"]], steps) & (parts["transfer_ns"] >= 0)
    codes, names = calls.codes("axis")
    axis = codes[parts["call"]]
    over: dict[str, float] = {}
    for code in np.unique(axis[chosen]).tolist():
        sums = [int(parts["transfer_ns"][chosen & (axis == code) & (parts["rank"] == r)].sum()) for r in (rank, *peers)]
        over[names[code]] = sums[0] - float(np.median(sums[1:])) if len(sums) > 1 else 0.0
    worst = max(sorted(over), key=lambda name: over[name], default="")
    return worst if worst and over[worst] > 0 else ""


def excess(own: OwnTime, rank: int, peers: tuple[int, ...], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give each part's mean excess over the peers' median, over some steps; NaN without peers in these steps."""
    p = own.parts
    found = []
    for step in steps.tolist():
        mine = (p.rank == rank) & (p.step == step)
        theirs = np.isin(p.rank, peers) & (p.step == step)
        if mine.any() and theirs.any():
            found.append(own.columns[mine][0] - np.median(own.columns[theirs], axis=0))
    return np.mean(found, axis=0) if found else np.full(len(_OWN), np.nan)


def work_ratio(own: OwnTime, rank: int, peers: tuple[int, ...], steps: NDArray[np.int64]) -> float:
    """Give how much more the rank has to do than its peers: by kernels or by FLOP, whichever tells of more."""
    return max(_ratio(own, counts, rank, peers, steps) for counts in (own.kernels, own.flop))


def _ratio(own: OwnTime, counts: NDArray[Any], rank: int, peers: tuple[int, ...], steps: NDArray[np.int64]) -> float:
    """Give the median over steps of a rank's count over its peers' median; 1 where none is known."""
    p, found = own.parts, []
    for step in steps.tolist():
        mine, theirs = ((rows & (p.step == step)) for rows in (p.rank == rank, np.isin(p.rank, peers)))
        if mine.any() and theirs.any() and np.median(counts[theirs]) > 0:
            found.append(float(counts[mine][0] / np.median(counts[theirs])))
    return float(np.median(found)) if found else 1.0


def why(over: NDArray[np.float64], cost_ns: float, slowdown: float, work: float) -> Why:
    """Name the part whose excess covers the cost, if one does."""
    if not len(over) or np.isnan(over).any() or over.max() < COVERS * cost_ns:
        return Why.UNKNOWN
    cause = _OWN[int(np.argmax(over))]
    if cause is Why.SLOW_COMPUTE and work - 1 >= COVERS * (slowdown - 1) > 0:
        return Why.MORE_WORK
    return cause


def describe(over: NDArray[np.float64]) -> dict[str, int]:
    """Give the excess by part, for evidence."""
    return {} if np.isnan(over).any() else {str(part): round(float(ns)) for part, ns in zip(_OWN, over, strict=True)}
