"""Groups of gloo's work, checked with the times of all ranks.

No member of a collective ends before the last has started, so the members' ranges overlap, and they end together. Other
ranks may run equal operations, but at their own times:

    rank 0, group 0-1   |---|  |-----|      |---|
    rank 1, group 0-1     |-|  |-----|     |----|
    rank 2, group 2-3  |--|        |---| |--|

A group inferred from one rank (`gloo_groups`) is wrong if its members' ranges do not overlap. The best of the rank's
groups then replaces it if all members agree; otherwise the group is unknown. Ranks with different clocks are compared
by the numbers of their operations.

The limits below were chosen on six layouts of Megatron-Core and DeepSpeed, and tried on seven others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import index_of
from usp_prof.columns.rows import lowest_reached
from usp_prof.columns.table import Columns, Replaced, View
from usp_prof.model.topology import Axis, AxisSource, Group
from usp_prof.tables.communication.moves import Move, moved
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.events.frame import compact
from usp_prof.tables.parallelism.gloo_groups import created
from usp_prof.tables.parallelism.group_axes import hosts_of
from usp_prof.tables.table_set import ChangedSource, Source

Operation = tuple[str, int]
"""Name and bytes; 0 bytes if they differ between members."""

_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no member ends before all have started."""
_UNEVEN = ("all_to_all",)
"""Operations whose bytes differ between members."""
_GROWING = ("all_gather", "reduce_scatter")
"""Operations whose output and input show the size of the group."""
_COMPARED = 8
"""Greatest number of members that are compared with a rank."""
_SIMULTANEOUS = 0.9
"""Least share of overlapping calls between ranks with one clock, for at least one of the rank's groups."""
_MEMBER = 0.25
"""Evidence for each member that a group needs; less is evidence against it."""
_BETTER = 0.5
"""Evidence by which a group is better than the inferred one."""
_LESS_EXACT, _EXACT_NS = 4, 50_000
"""Ends of other ranks differ by several times those of members, which themselves differ by the wake-up of threads."""
_TIED_NS = 2_000_000
"""The shortest transfer on one host takes less, and gloo's ranges of sends begin at most this long after their data."""
_NEVER = 1 << 60
"""Difference of ends in ns if the other rank has no equal call."""

Calls = dict[Operation, tuple[Ints, Ints]]
"""Starts and ends of each operation, both sorted."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The calls of one worker thread, which serves one group, or of its alike workers."""

    rows: Ints
    """In the table of collectives."""
    group: str
    """Key of the inferred group; empty if unknown."""
    size: int
    """Size of the group according to its gathers and scatters; 0 if unknown."""
    calls: Calls

    def counts(self) -> Counter[Operation]:
        """Count the operations."""
        return Counter({operation: len(ends) for operation, (_, ends) in self.calls.items()})


@dataclass(frozen=True, slots=True)
class _Compared:
    """Work compared with the calls of another rank."""

    overlap: float
    """Share that overlaps an equal call of the other rank; -1 if their times cannot be compared."""
    ends_ns: float
    """Median difference of the ends."""
    counts: float
    """Share that the other rank ran as well, at any time."""
    is_complete: bool
    """Whether both ranks ran these operations equally often, so that no event seems to be missing."""

    @property
    def refutes(self) -> bool:
        """Whether the other rank is no member: nothing is missing, but some calls do not overlap."""
        return self.is_complete and 0 <= self.overlap < 1

    def evidence(self, closest_ns: float) -> float:
        """Return how well the other rank fits as a member, from -1 to 1; ends of members differ by `closest_ns`."""
        if self.overlap < 0:
            return float(np.interp(self.counts, [0.7, 0.9], [-0.5, 0.5]))
        surest = -0.5 if self.refutes else 1.0
        at_most = -0.5 if self.is_complete else 0.5
        apart = 0 if self.ends_ns <= _LESS_EXACT * closest_ns + _EXACT_NS else _BETTER
        return float(np.interp(self.overlap, [0.5, 0.9, 1], [-1, at_most, surest])) - apart


def regrouped(sources: Mapping[int, Source], groups: Iterable[Group]) -> dict[int, Source]:
    """Return the ranks' tables with groups that the times of their members do not contradict."""
    work = {rank: _work(Columns(source.view("collectives"))) for rank, source in sources.items()}
    work = {rank: of_rank for rank, of_rank in work.items() if of_rank}
    calls = {rank: _merged(own.calls for own in of_rank) for rank, of_rank in work.items()}
    groups_of: dict[int, list[Group]] = {rank: [] for rank in work}
    for group in groups:
        for rank in groups_of.keys() & set(group.ranks):
            groups_of[rank].append(group)
    compared = {rank: _compare_all(rank, of_rank, calls, groups_of[rank]) for rank, of_rank in work.items()}
    compared = _on_one_clock(compared, {rank: sources[rank] for rank in work})
    chosen = {rank: _choose(of_rank, compared[rank], groups_of[rank]) for rank, of_rank in work.items()}
    refuted = {
        own.group
        for rank, of_rank in work.items()
        for own, of_others in zip(of_rank, compared[rank], strict=True)
        for group in groups_of[rank]
        if group.key == own.group and any(of_others[other].refutes for other in group.ranks if other in of_others)
    }
    changed = dict(sources)
    for rank, of_rank in work.items():
        moves = []
        for own, agreed in zip(of_rank, _agreed(rank, work, chosen), strict=True):
            if agreed is not None and agreed.key != own.group:
                moves.append(Move(own.rows, agreed.key, agreed.size))
            elif own.group in refuted:
                moves.append(Move(own.rows, "", -1))
        if moves:
            keys = {move.key for move in moves} | {own.group for own in of_rank}
            changes = {"collectives": partial(_inferred, moves=moves), "groups": partial(_uncounted, keys=keys)}
            changed[rank] = ChangedSource(sources[rank], changes)
    return changed


def _inferred(collectives: View, moves: Sequence[Move]) -> View:
    """Return one rank's collectives with some rows in other groups, whose axes are inferred unless marks name them."""
    codes, sources = Columns(collectives).codes("axis_source")
    sources = [*sources, AxisSource.INFERRED.value]
    is_moved = np.zeros(len(codes), bool)
    is_moved[np.concatenate([move.rows for move in moves])] = True
    is_marked = Columns(collectives).matches("axis_source", AxisSource.MARK)
    codes = np.where(is_moved & ~is_marked, len(sources) - 1, codes)
    return Replaced(moved(collectives, moves), {"axis_source": lambda: compact(codes, sources)})


def _uncounted(groups: View, keys: AbstractSet[str]) -> View:
    """Return one rank's groups without the numbers of calls that were counted before the groups were checked."""
    columns = Columns(groups)
    calls = np.where(np.isin(columns["group"], sorted(keys)), -1, columns["calls"])
    return Replaced(groups, {"calls": lambda: index_of(calls)})


def _work(columns: Columns) -> list[_Work]:
    """Return the calls of one rank whose groups no event names, by worker; alike workers of a group together."""
    is_gloo = columns.matches("library", "gloo")
    if not is_gloo.any():
        return []
    rows = np.flatnonzero(is_gloo & ~columns.matches("op", *P2P) & (columns["sequence"] < 0))
    values = (columns[name][rows].tolist() for name in ("lane", "group", "op", "in_bytes"))
    rows_of: dict[tuple[str, str], list[int]] = {}
    operations_of: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for row, lane, group, operation, size in zip(rows.tolist(), *values, strict=True):
        # Ranges of one thread that overlap have lanes of their own: "gloo 12", "gloo 12/1".
        worker = lane.split("/")[0], group
        rows_of.setdefault(worker, []).append(row)
        operations_of.setdefault(worker, set()).add((operation, size))
    alike: dict[tuple[str, frozenset[tuple[str, int]]], list[int]] = {}
    for (thread, group), rows_of_worker in rows_of.items():
        alike.setdefault((group or thread, frozenset(operations_of[thread, group])), []).extend(rows_of_worker)
    return [_work_at(columns, np.sort(rows_of_both)) for rows_of_both in alike.values()]


def _work_at(columns: Columns, rows: Ints) -> _Work:
    own = columns.take(rows)
    operations, into, out = (own[name].tolist() for name in ("op", "in_bytes", "out_bytes"))
    start, end = own["start_ns"], own["start_ns"] + own["dur_ns"]
    places: dict[Operation, list[int]] = {}
    sizes: Counter[int] = Counter()
    for place, (operation, bytes_in, bytes_out) in enumerate(zip(operations, into, out, strict=True)):
        places.setdefault((operation, 0 if operation in _UNEVEN else bytes_in), []).append(place)
        if operation in _GROWING and bytes_in > 0 and bytes_out > 0:
            sizes[max(bytes_in, bytes_out) // min(bytes_in, bytes_out)] += 1
    return _Work(
        rows,
        group=own["group"][0],
        size=sizes.most_common(1)[0][0] if sizes else 0,
        calls={operation: (np.sort(start[at]), np.sort(end[at])) for operation, at in places.items()},
    )


def _merged(several: Iterable[Calls]) -> Calls:
    """Combine calls."""
    times: dict[Operation, list[tuple[Ints, Ints]]] = {}
    for calls in several:
        for operation, own in calls.items():
            times.setdefault(operation, []).append(own)
    return {
        operation: (np.sort(np.concatenate(starts)), np.sort(np.concatenate(ends)))
        for operation, parts in times.items()
        for starts, ends in [zip(*parts, strict=True)]
    }


def _compare_all(
    rank: int, work: Sequence[_Work], calls: Mapping[int, Calls], groups: Sequence[Group]
) -> list[dict[int, _Compared]]:
    """Compare each part of a rank's work with the other members of its groups, or with a few of many."""
    compared_ranks = {other for group in groups for other in _few(sorted(calls.keys() & set(group.ranks) - {rank}))}
    return [{other: _compare(own.calls, calls[rank], calls[other]) for other in sorted(compared_ranks)} for own in work]


def _few(members: Sequence[int]) -> Sequence[int]:
    return members[:: max(1, -(-len(members) // _COMPARED))]


def _on_one_clock(
    compared: Mapping[int, list[dict[int, _Compared]]], sources: Mapping[int, Source]
) -> dict[int, list[dict[int, _Compared]]]:
    """Return the comparisons, without times between ranks that may have different clocks.

    Containers on several hosts may have one name. So calls or transfers at the same times must connect the ranks.
    """
    hosts, ranks = hosts_of(sources), sorted(sources)
    columns = {rank: Columns(source.view("collectives")) for rank, source in sources.items()}
    pairs = {
        (rank, other)
        for rank, of_rank in compared.items()
        for of_others in of_rank
        for other, of_other in of_others.items()
        if hosts[rank] == hosts[other]
        if of_other.overlap >= _SIMULTANEOUS or _is_tied(columns[rank], rank, columns[other], other)
    }
    first, second = np.searchsorted(ranks, np.array(sorted(pairs), np.int64).reshape(-1, 2).T)
    clocks = dict(zip(ranks, lowest_reached(first, second, np.arange(len(ranks))).tolist(), strict=True))
    return {
        rank: [
            {
                other: of_other if clocks[rank] == clocks[other] else replace(of_other, overlap=-1)
                for other, of_other in of_others.items()
            }
            for of_others in of_rank
        ]
        for rank, of_rank in compared.items()
    }


def _is_tied(columns: Columns, rank: int, peer_columns: Columns, other: int) -> bool:
    """Return whether transfers in both directions show that two clocks are alike."""
    latencies = [
        _shortest_ns(sender, receiver, source, target)
        for sender, source, receiver, target in (
            (columns, rank, peer_columns, other),
            (peer_columns, other, columns, rank),
        )
    ]
    return all(latency is not None and abs(latency) < _TIED_NS for latency in latencies)


def _shortest_ns(sender: Columns, receiver: Columns, source: int, target: int) -> int | None:
    """Return the shortest time from the start of a send to the end of its receive; `None` if some are missing."""
    sends = np.flatnonzero(sender.matches("op", "send") & (sender["peer"] == target))
    receives = np.flatnonzero(receiver.matches("op", "recv") & (receiver["peer"] == source))
    if not len(sends) or len(sends) != len(receives):
        return None
    ends = receiver["start_ns"][receives] + receiver["dur_ns"][receives]
    return int((ends - sender["start_ns"][sends]).min())


def _choose(
    work: Sequence[_Work], compared: Sequence[Mapping[int, _Compared]], groups: Sequence[Group]
) -> list[Group | None]:
    """Return the group of each part of a rank's work; the inferred one unless another fits the other ranks better."""
    chosen = []
    for own, of_others in zip(work, compared, strict=True):
        closest_ns = min((of_other.ends_ns for of_other in of_others.values() if of_other.overlap >= 0), default=0)
        # Without an inferred group, only times are evidence.
        evidence = {
            other: of_other.evidence(closest_ns) if own.group or of_other.overlap >= 0 else 0
            for other, of_other in of_others.items()
        }
        fits = {
            group.key: sum(evidence[other] - _MEMBER for other in group.ranks if other in evidence) for group in groups
        }
        chosen.append(_best(own, fits, groups))
    return chosen


def _best(work: _Work, fits: Mapping[str, float], candidates: Sequence[Group]) -> Group | None:
    """Return the inferred group, or the only set of ranks that fits better: of its groups, the first."""
    inferred = next((group for group in candidates if group.key == work.group), None)
    least = max(0.0, _BETTER + (fits[inferred.key] if inferred else 0))
    better = [group for group in candidates if work.size in {0, group.size} and fits[group.key] >= least]
    highest = max((fits[group.key] for group in better), default=0)
    best = [group for group in better if fits[group.key] == highest]
    if len({group.ranks for group in best}) != 1:
        return inferred
    return min(best, key=lambda group: (group.axis == Axis.UNKNOWN, created(group.name)))


def _compare(own: Calls, all_own: Calls, other: Calls) -> _Compared:
    """Compare some of a rank's calls with the equal calls of another rank that end closest to them."""
    ends = np.concatenate([end for _, end in other.values()])
    differences: list[Ints] = []
    n_overlapping = n_shared = 0
    for operation, (start, end) in own.items():
        other_start, other_end = other.get(operation, (ends[:0], ends[:0]))
        n_shared += min(len(end), len(other_end))
        # Both ranks were recorded at that time.
        is_recorded = (end >= ends.min()) & (end <= ends.max())
        from_ns, to_ns = start[is_recorded], end[is_recorded]
        if operation[0] not in _TOGETHER or not len(to_ns):
            continue
        if not len(other_end):
            differences.append(np.full(len(to_ns), _NEVER))
            continue
        after = np.minimum(np.searchsorted(other_end, to_ns), len(other_end) - 1)
        nearby = other_end[[np.maximum(after - 1, 0), after]]
        differences.append(np.abs(nearby - to_ns).min(axis=0))
        # Other calls that started before an end, without those that had ended at the start.
        n_around = np.searchsorted(other_start, to_ns + _EXACT_NS) - np.searchsorted(other_end, from_ns - _EXACT_NS)
        n_overlapping += int((n_around > 0).sum())
    difference = np.concatenate(differences) if differences else ends[:0]
    return _Compared(
        overlap=n_overlapping / len(difference) if len(difference) else -1,
        ends_ns=float(np.median(difference)) if len(difference) else 0,
        counts=n_shared / sum(len(end) for _, end in own.values()),
        is_complete=all(key in other and len(all_own[key][1]) == len(other[key][1]) for key in own),
    )


def _agreed(
    rank: int, work: Mapping[int, Sequence[_Work]], chosen: Mapping[int, Sequence[Group | None]]
) -> list[Group | None]:
    """Return the groups of a rank's work that all members chose; `None` if they disagree.

    Groups with the same ranks are the same here: all members use the name of the first.
    """
    agreed: list[Group | None] = []
    for own, group in zip(work[rank], chosen[rank], strict=True):
        members = sorted(work.keys() & set(group.ranks)) if group else []
        of_members = [_alike(own, group, work[member], chosen[member]) for member in members if group]
        agreed.append(of_members[0] if of_members and None not in of_members else None)
    return agreed


def _alike(own: _Work, group: Group, work: Sequence[_Work], chosen: Sequence[Group | None]) -> Group | None:
    """Return the group with the same ranks in which a member runs most of the same operations."""
    shared: Counter[Group] = Counter()
    for part, other in zip(work, chosen, strict=True):
        if other is not None and other.ranks == group.ranks:
            shared[other] += (part.counts() & own.counts()).total()
    return max(+shared, key=shared.__getitem__, default=None)
