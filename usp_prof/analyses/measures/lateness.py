"""Lateness of a rank: its own time compared with its peers', part by part, and the part that explains its cost.

Own time is time not spent waiting for other ranks: compute, transfers, copies, input, host. The excess of a part is
its time minus the median of the rank's peers, which do the same work. A part is the cause of lateness if its excess is
at least half of the rank's cost to the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures import op_work
from usp_prof.analyses.measures.partition import CAUSES, Partition
from usp_prof.analyses.measures.partition import Cause as Idle
from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import first_rows, group_codes, lookup, numbered, rows_by_code, rows_of
from usp_prof.columns.statistics import medians_of_others
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import calls as call_table
from usp_prof.tables import shares
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
    """Own time; each array has one row per (rank, step) of the partition."""

    parts: Partition
    columns: Ints
    """In ns, one column per part in the order of `_OWN`."""
    flop: Floats
    """FLOP of the ops with known shapes; 0 if no shapes were recorded."""

    @property
    def total(self) -> Ints:
        """Total own time of a rank's step."""
        return np.asarray(self.columns.sum(axis=1))


def own_time(tables: TableSet, parts: Partition) -> OwnTime:
    """Split each rank's steps into own time: compute, transfers, copies, input, host."""
    own = {
        Why.SLOW_COMPUTE: parts.compute,
        Why.SLOW_LINK: np.maximum(parts.exposed.sum(axis=1) - parts.waited, 0),
        Why.COPIES: parts.memcpy,
        Why.LATE_INPUT: parts.idle[:, CAUSES.index(Idle.INPUT)],
        Why.HOST: parts.idle[:, [CAUSES.index(cause) for cause in (Idle.HOST, Idle.SYNC, Idle.OTHER)]].sum(axis=1),
    }
    return OwnTime(parts, np.stack([own[part] for part in _OWN], axis=1), _flop(tables, parts))


def _flop(tables: TableSet, parts: Partition) -> Floats:
    """Return the FLOP of the ops per (rank, step). Each op counts once, however many kernels it launched."""
    flop_of_row, rows_of_rank = np.zeros(len(parts.rank)), rows_by_code(parts.rank)
    # A selection that names its last step includes steps cut by the end of the recording.
    until_last = Selection(last_step=int(parts.step.max(initial=0)))
    is_cut = np.isin(parts.step, tables.cut_steps).any()
    measure = partial(_flop_of_ops, selection=until_last if is_cut else EVERYTHING)
    of_ranks = shares.of_each_rank(tables, measure, list(rows_of_rank))
    for rows, (step, flop) in zip(rows_of_rank.values(), of_ranks, strict=True):
        # By op: index of its step among the rank's steps. Ops outside these steps do not count.
        steps, place_of_row = numbered(parts.step[rows])
        place = rows_of(steps, step)
        inside = place >= 0
        flop_of_row[rows] = np.bincount(place[inside], flop[inside], len(steps))[place_of_row]
    return flop_of_row


def _flop_of_ops(tables: TableSet, rank: int, selection: Selection) -> tuple[Ints, Floats]:
    """Return step and FLOP of each op of a known kind that launched kernels."""
    work = op_work.of_rank(tables, rank, selection)
    # The first kernel of each op; -1 is for kernels without one.
    first = first_rows(work.owner)
    first = first[(work.owner[first] >= 0) & (work.kind[first] >= 0)]
    flop_of_kind = [kind.cost.flop if kind.cost is not None else 0.0 for kind in work.kinds]
    return work.step[first], lookup(flop_of_kind, work.kind[first], missing=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """Ranks grouped by the kind of work that they do; ranks of one kind are peers."""

    kind_of_rank: dict[int, int]
    ranks_of_kind: list[list[int]]

    @classmethod
    def of_groups(cls, groups: Iterable[Sequence[int]]) -> Peers:
        """Return the peers if each group is a kind; groups must not overlap."""
        ranks_of_kind = [list(group) for group in groups]
        return cls({rank: kind for kind, group in enumerate(ranks_of_kind) for rank in group}, ranks_of_kind)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Return the other ranks of its kind."""
        return tuple(other for other in self.ranks_of_kind[self.kind_of_rank[rank]] if other != rank)

    def kinds(self, rank: Ints) -> Ints:
        """Return the kind of each of these ranks."""
        return np.array([self.kind_of_rank[rank_number] for rank_number in rank.tolist()], np.int64)


def peers_of(tables: TableSet) -> Peers:
    """Return the peers: ranks with the same pipeline stage and, if known, the same position on `cp`."""
    ranks_of_work: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in tables.ranks:
        place = tables.topology.coordinates.get(rank)
        if place is not None and len(tables.topology.coordinates) >= len(tables.ranks):
            work: tuple[object, ...] = tuple(place.get(axis, 0) for axis in ("pp", "cp"))
        else:
            work = tuple(np.unique(tables.columns("actions", rank)["stage"]).tolist())
        ranks_of_work[work].append(rank)
    return Peers.of_groups(ranks_of_work.values())


def excess_by_row(own: OwnTime, peers: Peers) -> Ints:
    """Return per (rank, step) how much longer its own parts take than its peers' medians; -1 without peers."""
    peer_median = peer_medians(own.parts, peers, own.columns)
    over = np.maximum(own.columns - peer_median, 0).sum(axis=1)
    return np.where(np.isnan(over), -1, over).astype(np.int64)


def peer_medians(parts: Partition, peers: Peers, figures: NDArray[Any]) -> Floats:
    """Return per (rank, step), a row of `figures`, the medians over its peers in that step; NaN without peers."""
    medians = np.full(figures.shape, np.nan)
    for rows in rows_by_code(group_codes(peers.kinds(parts.rank), parts.step)).values():
        if len(rows) > 1:
            medians[rows] = medians_of_others(figures[rows])
    return medians


def slow_axis(tables: TableSet, rank: int, peers: tuple[int, ...], steps: Ints) -> str:
    """Return the axis with the rank's largest excess of transfer time over its peers', or an empty string if none."""
    if not peers:
        return ""
    matched = call_table.match_calls(tables)
    is_chosen = np.isin(matched.columns()["step"], steps)
    axis_of_call, names = matched.columns().codes("axis")
    by_axis = []  # the rank's own sums, then its peers'
    for member in (rank, *peers):
        parts = matched.parts.of_rank(member, "call", "transfer_ns")
        rows = np.flatnonzero(is_chosen[parts["call"]] & (parts["transfer_ns"] >= 0))
        by_axis.append(np.bincount(axis_of_call[parts["call"][rows]], parts["transfer_ns"][rows], len(names)))
    own, *of_peers = by_axis
    over = dict(zip(names, (own - np.median(of_peers, axis=0)).tolist(), strict=True))
    worst = max(sorted(over), key=lambda name: over[name], default="")
    return worst if worst and over[worst] > 0 else ""


def excess(own: OwnTime, rank: int, peers: tuple[int, ...], steps: Ints) -> Floats:
    """Return each part's mean excess over the peers' median in these steps; NaN without peers in them."""
    by_step = [
        own.columns[own_row] - np.median(own.columns[peer_rows], axis=0)
        for own_row, peer_rows in _beside_peers(own.parts, rank, peers, steps)
    ]
    return np.mean(by_step, axis=0) if by_step else np.full(len(_OWN), np.nan)


def _beside_peers(parts: Partition, rank: int, peers: tuple[int, ...], steps: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield the rank's row and its peers' rows for each step that the rank and at least one peer have."""
    is_peer = np.isin(parts.rank, peers)
    for step in steps.tolist():
        own_rows = np.flatnonzero((parts.rank == rank) & (parts.step == step))
        peer_rows = np.flatnonzero(is_peer & (parts.step == step))
        if len(own_rows) and len(peer_rows):
            yield int(own_rows[0]), peer_rows


def work_ratio(own: OwnTime, rank: int, peers: tuple[int, ...], steps: Ints) -> float:
    """Return the rank's work over its peers', by kernel count or by FLOP, whichever is larger."""
    return max(_ratio(own, counts, rank, peers, steps) for counts in (own.parts.kernels, own.flop))


def _ratio(own: OwnTime, counts: NDArray[Any], rank: int, peers: tuple[int, ...], steps: Ints) -> float:
    """Return the median over steps of the rank's count over its peers' median; 1 if unknown."""
    ratios = [
        float(counts[own_row] / peer_median)
        for own_row, peer_rows in _beside_peers(own.parts, rank, peers, steps)
        if (peer_median := np.median(counts[peer_rows])) > 0
    ]
    return float(np.median(ratios)) if ratios else 1.0


def why(over: Floats, cost_ns: float, slowdown: float, work: float) -> Why:
    """Return the part whose excess covers the cost, or `UNKNOWN`."""
    if not len(over) or np.isnan(over).any() or over.max() < COVERS * cost_ns:
        return Why.UNKNOWN
    cause = _OWN[int(np.argmax(over))]
    if cause is Why.SLOW_COMPUTE and work - 1 >= COVERS * (slowdown - 1) > 0:
        return Why.MORE_WORK
    return cause


def describe(over: Floats) -> dict[str, int]:
    """Return the excess by part, as evidence."""
    return {} if np.isnan(over).any() else {str(part): round(float(ns)) for part, ns in zip(_OWN, over, strict=True)}
