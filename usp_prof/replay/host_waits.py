"""Host waits: host calls that return only when the device has reached a certain point.

The kind of call determines what it waits for:

  stream sync           the work launched so far on one stream: that of the thread's last launch (`.item()` copies, then
                        syncs the stream of the copy), or another one (`stream_syncs`)
  device sync, cudaFree the work launched so far on every stream
  pageable copy         the end or the start of its own copy
  event sync            work that the trace does not name. If the calls of a thread that waited always returned a fixed
                        time after the same piece of work (such as the third last reduction launched), that piece;
                        otherwise the last work that ended within the call

If the trace names what a sync waits for (`recorded_waits`), that counts instead.

Such a call returns when all of this work has ended, plus the extra time it took in the recording. If a sync returned
before the inferred work had ended, the last work that ended within the call is used instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, last_by, lookup, rows_by_code, rows_of, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, ROUNDING_NS, EdgeKind, NodeKind
from usp_prof.replay.rank_edges import PartialWaits
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import RecordedWaits
from usp_prof.tables.table_set import TableSet

_SEEMINGLY_EARLY = 256
"""Maximum number of activities skipped because they seem to end before their launch."""
RESUMED_NS = 100_000
"""A host that waited for the device continues within this time after the awaited work ended."""
_FURTHEST_BACK = 8
"""An event sync is compared with this many of the last pieces of work launched on each stream."""
LEAST_WAITS, _SAME_LATENCY_NS = 3, 20_000
"""Calls wait for the same piece of work if at least this number of them returned after its end, each time by the same
latency within this tolerance."""
CONTRADICTED = 0.1
"""A call does not wait if it returns before the work it should wait for in more than this share of cases."""


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """The waiting calls of one rank's host, and the work that each kind of call waits for."""

    nodes: RankNodes
    return_node: Ints
    """By call: the node of its return."""
    called_at: Ints
    returned_at: Ints
    name: NDArray[np.object_]
    is_sync: Flags
    """By call: it only waits. Other calls, such as freeing memory, also do work."""
    is_copy: Flags
    """By call: it waits for its own copy, whatever other calls of this name do, unless it returned before."""
    is_stream_sync: Flags
    """By call: it waits for a stream that the trace does not name."""
    last_launch: NDArray[np.object_]
    """By call: the name of the work that its thread launched last."""
    is_recorded: Flags
    """By call: the trace names what it waits for."""
    source: Ints
    """By awaited work: its node."""
    call: Ints
    """By awaited work: the call that waits for it, as a row of the arrays above."""
    at_start: Flags
    """By awaited work: whether the call waits for its start instead of its end."""

    @property
    def ended(self) -> Ints:
        """By call: when the last work it waited for had ended; NEVER if there was none."""
        moment = np.where(self.at_start, self.nodes.start[self.source], self.nodes.end[self.source])
        latest = np.full(len(self.return_node), NEVER)
        np.maximum.at(latest, self.call, moment)
        return latest

    @property
    def own_ns(self) -> Ints:
        """By call: the time that its wait does not explain; negative if it returned before the work ended.

        A call in which work ends, and one that has nothing to wait for:

            call   |-----------------|    call      |--------|
            work  =======|                work  ==|
            own           ^^^^^^^^^^^^    own       ^^^^^^^^^^
        """
        return self.returned_at - np.maximum(self.ended, self.called_at)

    @property
    def returned_early(self) -> Flags:
        """Marks of the calls that returned while the work still ran, beyond the uncertainty of the clocks."""
        return self.ended > self.returned_at + LEFT_BY_CLOCKS_NS

    def without(self, calls: Flags) -> HostWaits:
        """Return a copy in which the marked calls wait for nothing."""
        stays = ~calls[self.call]
        return replace(self, source=self.source[stays], call=self.call[stays], at_start=self.at_start[stays])

    def with_source(self, source: Ints) -> HostWaits:
        """Return a copy in which each call waits for the end of its `source` only; -1 leaves a call as it is."""
        calls = np.flatnonzero(source >= 0)
        unchanged = self.without(source >= 0)
        return replace(
            unchanged,
            source=np.append(unchanged.source, source[calls]),
            call=np.append(unchanged.call, calls),
            at_start=np.append(unchanged.at_start, np.zeros(len(calls), bool)),
        )


def launches_by_lane(nodes: RankNodes, before: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each lane of the device, its work in order of launch, and the place of the last launch before each moment.

    Work whose launch is not in the trace is left out. The place is -1 if nothing was launched before.

        launches on the lane   a       b       c
        moments                    |       |        |    ->   work [a, b, c], places [0, 1, 2]
    """
    device = nodes.launched_work
    for lane, rows in rows_by_code(nodes.lane[device]).items():
        work = sorted_by(nodes.launched_at, device[rows])
        yield lane, work, np.searchsorted(nodes.launched_at[work], before) - 1


def host_waits(tables: TableSet, nodes: RankNodes, recorded: RecordedWaits) -> HostWaits:
    """Return the waits of one rank's host calls; `recorded` are those that its trace names."""
    return_node = np.flatnonzero(nodes.kind == NodeKind.RETURN)
    event, returned_at = nodes.event[return_node], nodes.start[return_node]
    launches = tables.columns("launches", nodes.rank)
    row = rows_of(launches["event"], event)
    called_at = launches["start_ns"][row] + nodes.host_shift
    name_code, names = launches.codes("name")
    # By call: the node of its own copy, of the work that the trace names, and of its thread's last launch; or -1.
    device = nodes.launched_work
    copy = lookup(device, rows_of(nodes.launch[device], event), missing=-1)
    recorded_work = lookup(recorded.source, rows_of(recorded.call, event), missing=-1)
    launched_last = _last_launch(launches, row, called_at, nodes)
    is_recorded = recorded_work >= 0
    scope = lookup([_scope(text) for text in names], name_code[row], missing=_EVERY_STREAM)
    scope = np.where(is_recorded | (copy >= 0), _ONE_PIECE, scope)
    calls = _Calls(called_at, returned_at, scope, lookup(nodes.lane, launched_last, missing=-1))
    # If a copy had not ended when its call returned, the call waited only for the start.
    until_start = ~is_recorded & (nodes.end[copy] > returned_at + LEFT_BY_CLOCKS_NS)
    source, call, at_start = _awaited(calls, np.where(is_recorded, recorded_work, copy), until_start, nodes)
    return HostWaits(
        nodes=nodes,
        return_node=return_node,
        called_at=called_at,
        returned_at=returned_at,
        name=lookup(names, name_code[row], missing=""),
        is_sync=launches.matches("kind", "sync")[row],
        is_copy=copy >= 0,
        is_stream_sync=scope == _ONE_STREAM,
        last_launch=lookup(nodes.name[1], lookup(nodes.name[0], launched_last, missing=-1), missing=""),
        is_recorded=is_recorded,
        source=source,
        call=call,
        at_start=at_start,
    )


def names_that_wait(waits_of_ranks: Sequence[HostWaits]) -> set[str]:
    """Return the names of calls that wait in this run, based on all ranks together.

    Whether a call such as `cudaFree` waits depends on the driver and the allocator. If it sometimes returns while the
    work it should wait for still runs, it never waits; returning after such work is then a coincidence.
    """
    pending: Counter[str] = Counter()
    contradicted: Counter[str] = Counter()
    names: set[str] = set()
    for waits in waits_of_ranks:
        names.update(waits.name)
        had_to_wait = waits.ended > waits.called_at
        may_not_wait = ~waits.is_sync & ~waits.is_copy
        pending.update(waits.name[had_to_wait & may_not_wait])
        contradicted.update(waits.name[waits.returned_early & may_not_wait])
    return {name for name in names if contradicted[name] <= CONTRADICTED * pending[name]}


def add_returns(waits: HostWaits, names: set[str], rank: PartialWaits) -> None:
    """Add the awaited work of each waiting call; the gap of its return becomes the time the call takes after that."""
    if not len(waits.return_node):
        return
    waits = _corrected(waits, names)
    # Own time of the call: what follows the wait, or all of it if there was nothing left to wait for.
    own_ns = np.maximum(waits.own_ns, 0)
    rank.gap[waits.return_node] = own_ns
    # A sync without pending work has no lag when there is some to wait for; freeing memory always takes time.
    has_waited = waits.ended > waits.called_at
    lag = np.where(waits.is_sync & ~has_waited, 0, own_ns)[waits.call]
    target = waits.return_node[waits.call]
    for at_start in (False, True):
        rows = waits.at_start == at_start
        rank.edges.add(waits.source[rows], target[rows], lag[rows], EdgeKind.SYNC, at_end=not at_start)


def _corrected(waits: HostWaits, names: set[str]) -> HostWaits:
    """Return the waits that agree with the returns of the calls; only calls with these names, and copies, wait.

    A copy that returned too early waited for nothing. A sync waited for other work if its inferred work ended after
    the return, or long before it:

        sync            |--------------------------|
        inferred work  ===|                            too early: the sync waited for what ended last within it
        inferred work       ==============================|    too late: the same
    """
    waits = waits.without(~np.isin(waits.name, list(names)) & ~waits.is_copy)
    waits = waits.without(waits.is_copy & waits.returned_early)
    is_too_early = (waits.ended <= waits.called_at + RESUMED_NS) & (waits.own_ns > RESUMED_NS)
    is_wrong = (waits.returned_early | is_too_early) & waits.is_sync & ~waits.is_recorded
    guessed = np.full(len(waits.return_node), -1)
    guessed[is_wrong] = _ended_within(waits.nodes, waits.called_at[is_wrong], waits.returned_at[is_wrong])
    return waits.without(is_wrong).with_source(guessed)


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """The waiting calls of one rank: one entry per call in each array."""

    called_at: Ints
    returned_at: Ints
    scope: Ints
    """What the call waits for: `_ONE_PIECE`, `_ONE_STREAM`, `_EVERY_STREAM` or `_EVENT`."""
    lane: Ints
    """The lane of the work that its thread launched last."""


def _awaited(calls: _Calls, piece: Ints, until_start: Flags, nodes: RankNodes) -> tuple[Ints, Ints, Flags]:
    """Return what each call waits for: the work, the call, and whether it waits for the start.

    `piece` is the work of calls that wait for one piece; they wait for its end or, if marked, for its start.
    """
    has_piece = np.flatnonzero(calls.scope == _ONE_PIECE)
    pairs = [(piece[has_piece], has_piece)]
    for lane, work, last in launches_by_lane(nodes, calls.called_at):
        waits = (calls.scope == _EVERY_STREAM) | ((calls.scope == _ONE_STREAM) & (calls.lane == lane))
        rows = np.flatnonzero((last >= 0) & waits)
        pairs.append((work[last[rows]], rows))
    pairs += _of_events(calls, nodes)
    source, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
    at_start = np.append(until_start[has_piece], np.zeros(len(call) - len(has_piece), bool))
    return source, call, at_start


def _of_events(calls: _Calls, nodes: RankNodes) -> Iterator[tuple[Ints, Ints]]:
    """Yield the work that event syncs wait for, and the calls, if it is always the same piece of work.

    The syncs that follow launches on one stream are compared. The piece of work is given by its stream and its place
    from the last launch there. Many pieces end near the return of one call; only the awaited one always does.
    """
    syncs = np.flatnonzero(calls.scope == _EVENT)
    for lane in distinct(calls.lane[syncs]).tolist():
        rows = syncs[calls.lane[syncs] == lane]
        called_at, returned_at = calls.called_at[rows], calls.returned_at[rows]
        waited = returned_at - called_at > RESUMED_NS
        best = np.full(len(rows), -1)
        smallest_spread_ns = float(_SAME_LATENCY_NS)
        for piece in _pieces_before(nodes, called_at) if waited.sum() >= LEAST_WAITS else ():
            spread_ns = _latency_spread_ns(returned_at - nodes.end[piece], piece >= 0, waited)
            if spread_ns < smallest_spread_ns:
                best, smallest_spread_ns = piece, spread_ns
        has_best = best >= 0
        yield best[has_best], rows[has_best]


def _latency_spread_ns(latency_ns: Ints, has_piece: Flags, waited: Flags) -> float:
    """Return how much the latency from the end of a piece to the return varies among the calls that waited.

    It is infinite if the calls do not wait for this piece: a call that waited has none or usually returned long after
    it, or some call returned clearly before its end.
    """
    usual_ns = np.median(latency_ns[waited])
    is_contradicted = (latency_ns[has_piece] < min(usual_ns, 0) - _SAME_LATENCY_NS).any()
    if not has_piece[waited].all() or abs(usual_ns) > RESUMED_NS or is_contradicted:
        return float("inf")
    return float(np.abs(latency_ns[waited] - usual_ns).max())


def _pieces_before(nodes: RankNodes, called_at: Ints) -> Iterator[Ints]:
    """Yield, for each stream and place from the last launch, the work there before each call; -1 for none."""
    for _, work, last in launches_by_lane(nodes, called_at):
        for place in range(_FURTHEST_BACK):
            yield lookup(work, np.maximum(last - place, -1), missing=-1)


_ONE_PIECE, _ONE_STREAM, _EVERY_STREAM, _EVENT = range(4)
"""What a call waits for: its own copy or the work that the trace names, its stream, all streams, or a CUDA event."""


def _scope(name: str) -> int:
    """Return the scope of the wait of a call with this name."""
    if "Event" in name:
        return _EVENT
    return _ONE_STREAM if "Stream" in name else _EVERY_STREAM


def _last_launch(launches: Columns, row: Ints, called_at: Ints, nodes: RankNodes) -> Ints:
    """Return the work that the calling thread launched last before each call; -1 if it launched none.

    `row` is the call's row in `launches`.
    """
    device = nodes.launched_work
    thread = launches.codes("thread")[0]
    thread_of_work = lookup(thread, rows_of(launches["event"], nodes.launch[device]), missing=-1)
    launched_last = np.full(len(row), -1)
    for number, calls in rows_by_code(thread[row]).items():
        of_thread = device[thread_of_work == number]
        launched_last[calls] = last_by(nodes.launched_at, of_thread, by=called_at[calls])
    return launched_last


def _ended_within(nodes: RankNodes, called_at: Ints, returned_at: Ints) -> Ints:
    """Return the last work that was launched before each call and ended within it; -1 if there is none.

    If a call returned long after such work, it waited for what ended next, as exactly as the clocks agree.
    """
    within, soon_after = (
        _last_ended(nodes, called_at, returned_at + uncertainty_ns)
        for uncertainty_ns in (ROUNDING_NS, LEFT_BY_CLOCKS_NS)
    )
    explained_at = np.where(within >= 0, nodes.end[within], called_at)
    return np.where(returned_at - explained_at > RESUMED_NS, soon_after, within)


def _last_ended(nodes: RankNodes, called_at: Ints, until: Ints) -> Ints:
    """Return the last work that was launched before each call and ended between the call and `until`; -1 for none.

    If the clocks of host and device differ, work may seem to end before its launch. Calls before the launch cannot have
    waited for it.
    """
    by_end = sorted_by(nodes.end, nodes.launched_work)
    if not len(by_end):
        return np.full(len(until), -1)
    place = np.searchsorted(nodes.end[by_end], until, side="right") - 1
    # Step back over work that was launched after the call.
    for _ in range(_SEEMINGLY_EARLY):
        is_early = (place >= 0) & (nodes.launched_at[by_end[place]] >= called_at)
        if not is_early.any():
            break
        place[is_early] -= 1
    last_ended = lookup(by_end, place, missing=-1)
    is_within = (last_ended >= 0) & (nodes.launched_at[last_ended] < called_at) & (nodes.end[last_ended] > called_at)
    return np.where(is_within, last_ended, -1)
