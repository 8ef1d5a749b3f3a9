"""Unnamed groups: which ranks share the calls of communication that names neither a group nor a peer.

Old traces, and traces of device activity alone, do not name groups. Which ranks a late rank delays shows them. Counted
from the last, call k of several ranks is one call of all of them if

    - the ends of the members differ by microseconds after each rank's clock offset is removed, and
    - whenever one rank arrives clearly later than all others, none of the others ends before it arrives.

Groups of a mesh are tried from the largest: all ranks, halves, and so on. Smaller ones are only tried if late ranks
show that all larger ones are wrong. If no rank is ever clearly late, the calls stay without a group. NCCL runs an
all-to-all by the kernel of sends. In a pipeline or a ring, a late rank delays only adjacent ranks, so these stay
unnamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import lookup, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import group_key
from usp_prof.tables.communication.moves import Move, moved
from usp_prof.tables.table_set import ChangedSource, Source

Calls = Mapping[int, Ints]
"""Rows of `collectives` by rank, by start."""

TOGETHER_NS = 100_000
"""Maximum for the median distance of the ends of a call's members; 1 to 63 us were measured on five jobs."""
_RESOLUTION_NS = 5_000
"""Ends that are closer than this are as good as equal."""
_CLEARLY = 10
"""A rank is late if it arrives later than all others by this many distances of the ends."""
_LONGER_THAN_TRANSFER = 3
"""A rank is late if it arrives later than all others by this many transfers: ranks that do not wait have ended by then.
"""
_LEAST_LATE_CALLS = 3
_LEAST_RANKS = {"send_recv": 3}
"""Two ranks that exchange may be a pipeline of two stages or an all-to-all of two."""
_HELD = 0.9
"""Share of calls with a late rank in which it delays all others; a profiler occasionally loses a kernel."""
_NOT_SHARED = ("send", "recv", "other")
"""Operations that are not calls of a whole group, or are unknown."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well times fit if some ranks share their calls."""

    apart_ns: float
    """Median distance of the ends of a call's members."""
    late: int
    """Number of calls in which a member is clearly late."""
    held: int
    """Number of these in which all others wait for it."""
    is_refuted: bool

    @property
    def is_proven(self) -> bool:
        """Whether enough calls had a late member, and the others waited for it."""
        return self.late >= _LEAST_LATE_CALLS and self.held >= _HELD * self.late


@dataclass(frozen=True, slots=True)
class _Shared:
    """Calls of one operation and the groups of ranks that share them."""

    rows: Calls
    group_of_rank: dict[int, tuple[int, ...]]
    name: str


def name_groups(sources: Mapping[int, Source], world: int) -> tuple[dict[int, Source], list[HealthRow]]:
    """Assign communication that names no group to the ranks that share it, if their waits show which these are."""
    plain = dict(sources)
    if len(sources) < max(world, 2):
        return plain, []
    columns = {rank: Columns(source.view("collectives")) for rank, source in sources.items()}
    shared = [
        _Shared(rows, groups, name)
        for op, name, rows in _sequences(columns)
        if (groups := _groups_of(columns, rows, _LEAST_RANKS.get(op, 2)))
    ]
    if not shared:
        return plain, []
    changed: dict[int, Source] = {}
    for rank, source in sources.items():
        moves = [
            Move(own.rows[rank], group_key(own.name, members), len(members))
            for own in shared
            if (members := own.group_of_rank[rank])
        ]
        changed[rank] = ChangedSource(source, {"collectives": partial(moved, moves=moves)})
    count = sum(min(map(len, own.rows.values())) for own in shared)
    different = {group for own in shared for group in own.group_of_rank.values()}
    whose = f"all {len(sources)} ranks" if len(different) == 1 else f"{len(different)} groups of ranks"
    detail = (
        f"{count} calls per rank name no group; they count as calls of {whose}, because the others in a group waited "
        "whenever one rank was late"
    )
    return changed, [HealthRow("exchanges_grouped", Severity.INFO, count=count, detail=detail)]


def refute_one_group(columns: Mapping[int, Columns]) -> bool:
    """Return whether late ranks show that the unnamed calls are not those of all ranks."""
    fits = [_fit(*_times(columns, rows), [range(len(columns))]) for _, _, rows in _sequences(columns)]
    return any(fit.is_refuted and fit.apart_ns <= TOGETHER_NS for fit in fits)


def _sequences(columns: Mapping[int, Columns]) -> Iterator[tuple[str, str, Calls]]:
    """Yield the unnamed calls of each operation that all ranks have, with a name for their groups.

    Different groups run on different streams, so if all ranks have the same streams, each is a sequence of its own.
    """
    rows = {rank: _unnamed(own) for rank, own in columns.items()}
    if not all(map(len, rows.values())):
        return
    ops, lanes = ({rank: _texts(own, name, rows[rank]) for rank, own in columns.items()} for name in ("op", "lane"))
    for op in sorted(set.intersection(*(set(own.tolist()) for own in ops.values()))):
        of_op = {rank: np.flatnonzero(own == op) for rank, own in ops.items()}
        streams = {frozenset(lanes[rank][own].tolist()) for rank, own in of_op.items()}
        if len(streams) != 1:
            yield op, "", {rank: rows[rank][own] for rank, own in of_op.items()}
            continue
        (names,) = streams
        for lane in sorted(names):
            own_rows = {rank: rows[rank][own[lanes[rank][own] == lane]] for rank, own in of_op.items()}
            yield op, lane if len(names) > 1 else "", own_rows


def _unnamed(collectives: Columns) -> Ints:
    """Return the rows that name neither a group nor a peer, by start."""
    names_nothing = collectives.matches("group", "") & (collectives["peer"] < 0)
    rows = np.flatnonzero(names_nothing & ~collectives.matches("op", *_NOT_SHARED))
    return sorted_by(collectives["start_ns"], rows)


def _texts(columns: Columns, name: str, rows: Ints) -> NDArray[np.object_]:
    codes, texts = columns.codes(name)
    return lookup(texts, codes[rows], missing="")


def _groups_of(columns: Mapping[int, Columns], rows: Calls, least_ranks: int) -> dict[int, tuple[int, ...]]:
    """Return the group of each rank, or nothing if the times do not show it."""
    ranks = sorted(columns)
    start, end = _times(columns, rows)
    if start.shape[1] < _LEAST_LATE_CALLS:
        return {}
    for groups in _partitions(len(ranks)):
        fit = _fit(start, end, groups)
        if fit.is_refuted:
            continue
        if not fit.is_proven or len(groups[0]) < least_ranks or not _are_whole(start, end, groups):
            break
        of_place = {place: tuple(ranks[other] for other in group) for group in groups for place in group}
        return {ranks[place]: group for place, group in of_place.items()}
    return {}


def _are_whole(start: Ints, end: Ints, groups: Sequence[Sequence[int]]) -> bool:
    """Return whether the late ranks show that no two of the groups are parts of a larger one.

    A larger one may join two axes of a mesh that do not follow each other. All groups are alike, so only that with the
    most late calls is compared.
    """
    shown = max(groups, key=lambda group: _fit_of_group(start[group], end[group]).late)
    return all(_fit(start, end, [[*shown, *other]]).is_refuted for other in groups if other is not shown)


def _times(columns: Mapping[int, Columns], rows: Calls) -> tuple[Ints, Ints]:
    """Return starts and ends, with one row per rank and one column per call, counted from the last."""
    count = min(len(own) for own in rows.values())
    last = {rank: own[len(own) - count :] for rank, own in rows.items()}
    start = np.stack([columns[rank]["start_ns"][last[rank]] for rank in sorted(columns)])
    return start, start + np.stack([columns[rank]["dur_ns"][last[rank]] for rank in sorted(columns)])


def _partitions(world: int) -> Iterator[list[list[int]]]:
    """Yield the groups of each axis that a mesh of this many ranks can have, the largest first."""
    for size in (size for size in range(world, 1, -1) if world % size == 0):
        for stride in (stride for stride in range(1, world // size + 1) if world // size % stride == 0):
            blocks = range(0, world, size * stride)
            yield [list(range(block + at, block + size * stride, stride)) for block in blocks for at in range(stride)]


def _fit(start: Ints, end: Ints, groups: Sequence[Sequence[int]]) -> _Fit:
    """Return how well the times fit if in each group, call k of all members is one call."""
    fits = [_fit_of_group(start[group], end[group]) for group in groups]
    return _Fit(
        apart_ns=float(np.median([fit.apart_ns for fit in fits])),
        late=sum(fit.late for fit in fits),
        held=sum(fit.held for fit in fits),
        is_refuted=any(fit.is_refuted for fit in fits),
    )


def _fit_of_group(start: Ints, end: Ints) -> _Fit:
    """Return the same for one group; both arrays have one row per member and one column per call."""
    offset = np.median(end - end[0], axis=1).astype(np.int64)[:, None]
    start, end = start - offset, end - offset
    apart_ns = float(np.median(end.max(axis=0) - end.min(axis=0)))
    arrival = np.sort(start, axis=0)
    late_by = arrival[-1] - arrival[-2]
    transfer_ns = (end - start).min(axis=0)
    has_late_rank = late_by > np.maximum(_CLEARLY * max(apart_ns, _RESOLUTION_NS), _LONGER_THAN_TRANSFER * transfer_ns)
    # A rank that does not wait ends before the late one arrives by most of this time.
    holds_all = end.min(axis=0) >= arrival[-1] - late_by / 2
    late, held = int(has_late_rank.sum()), int((has_late_rank & holds_all).sum())
    too_few = late >= _LEAST_LATE_CALLS and held < _HELD * late
    return _Fit(apart_ns, late, held, is_refuted=apart_ns > TOGETHER_NS or too_few)
