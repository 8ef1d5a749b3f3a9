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
from usp_prof.columns.rows import distinct, last_by, lookup, rows_of, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, ROUNDING_NS, EdgeKind, NodeKind
from usp_prof.replay.rank_edges import RankEdges
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

    back: Ints
    """By call: the node of its return."""
    called_at: Ints
    name: NDArray[np.object_]
    is_sync: Flags
    """By call: it only waits. Other calls, such as freeing memory, also do work."""
    is_copy: Flags
    """By call: it waits for its own copy, whatever other calls of this name do, unless it returned before."""
    is_stream_sync: Flags
    """By call: it waits for a stream that the trace does not name."""
    after: NDArray[np.object_]
    """By call: the name of the work that its thread launched last."""
    is_recorded: Flags
    """By call: the trace names what it waits for."""
    source: Ints
    """By awaited work: its node."""
    call: Ints
    """By awaited work: the call that waits for it, as a row of the arrays above."""
    at_start: Flags
    """By awaited work: whether the call waits for its start instead of its end."""

    def ended(self, nodes: RankNodes) -> Ints:
        """Return for each call when the last work it waited for had ended; NEVER if there was none."""
        moment = np.where(self.at_start, nodes.start[self.source], nodes.end[self.source])
        latest = np.full(len(self.back), NEVER)
        np.maximum.at(latest, self.call, moment)
        return latest

    def without(self, calls: Flags) -> HostWaits:
        """Return a copy in which the marked calls wait for nothing."""
        stays = ~calls[self.call]
        return replace(self, source=self.source[stays], call=self.call[stays], at_start=self.at_start[stays])

    def instead(self, calls: Ints, source: Ints) -> HostWaits:
        """Return a copy in which each of these calls waits for the end of the given work only."""
        is_changed = np.zeros(len(self.back), bool)
        is_changed[calls] = True
        unchanged = self.without(is_changed)
        return replace(
            unchanged,
            source=np.append(unchanged.source, source),
            call=np.append(unchanged.call, calls),
            at_start=np.append(unchanged.at_start, np.zeros(len(calls), bool)),
        )


def host_waits(tables: TableSet, nodes: RankNodes, launched_at: Ints, recorded: RecordedWaits) -> HostWaits:
    """Return the waits of one rank's host calls; `recorded` are those that its trace names."""
    back = np.flatnonzero(nodes.kind == NodeKind.RETURN)
    device = np.flatnonzero(nodes.of_device & (launched_at > NEVER))
    launches = tables.columns("launches", nodes.rank)
    row = rows_of(launches["event"], nodes.event[back])
    called_at = launches["start_ns"][row] + nodes.host_shift
    code, texts = launches.codes("name")
    name = np.array([*texts, ""], object)[code[row]]
    copy = lookup(device, rows_of(nodes.launch[device], nodes.event[back]), missing=-1)
    named_work = lookup(recorded.source, rows_of(recorded.call, nodes.event[back]), missing=-1)
    scope = np.array([*(_scope(text) for text in texts), _EVERY_STREAM])[code[row]]
    scope = np.where((named_work >= 0) | (copy >= 0), _ONE_PIECE, scope)
    launched_last = _last_launch(launches, row, called_at, nodes, device, launched_at)
    calls = _Calls(back, called_at, scope, lookup(nodes.lane, launched_last, missing=-1))
    # If a copy had not ended when its call returned, the call waited only for the start.
    until_start = (named_work < 0) & (nodes.end[copy] > nodes.start[back] + LEFT_BY_CLOCKS_NS)
    awaited = _awaited(calls, np.where(named_work >= 0, named_work, copy), until_start, nodes, device, launched_at)
    is_sync = launches.matches("kind", "sync")[row]
    after = lookup(nodes.name[1], lookup(nodes.name[0], launched_last, missing=-1), missing="")
    return HostWaits(back, called_at, name, is_sync, copy >= 0, scope == _ONE_STREAM, after, named_work >= 0, *awaited)


def names_that_wait(nodes: Sequence[RankNodes], waits: Sequence[HostWaits]) -> set[str]:
    """Return the names of calls that wait in this run, based on all ranks together.

    Whether a call such as `cudaFree` waits depends on the driver and the allocator. If it sometimes returns while the
    work it should wait for still runs, it never waits; returning after such work is then a coincidence.
    """
    pending: Counter[str] = Counter()
    contradicted: Counter[str] = Counter()
    waiting: set[str] = set()
    for of_rank, own in zip(waits, nodes, strict=True):
        waiting.update(of_rank.name)
        ended = of_rank.ended(own)
        had_to_wait = ended > of_rank.called_at
        is_wrong = ended > own.start[of_rank.back] + LEFT_BY_CLOCKS_NS
        is_judged = ~of_rank.is_sync & ~of_rank.is_copy
        pending.update(of_rank.name[had_to_wait & is_judged])
        contradicted.update(of_rank.name[is_wrong & is_judged])
    return {name for name in waiting if contradicted[name] <= CONTRADICTED * pending[name]}


def add_returns(
    waits: HostWaits, names: set[str], nodes: RankNodes, edges: RankEdges, gap: Ints, launched_at: Ints
) -> None:
    """Add the awaited work of each waiting call; `gap` of its return becomes the time the call takes after that."""
    if not len(waits.back):
        return
    back, returned = waits.back, nodes.start[waits.back]
    waits = waits.without(~np.isin(waits.name, list(names)) & ~waits.is_copy)
    waits = waits.without(waits.is_copy & (waits.ended(nodes) > returned + LEFT_BY_CLOCKS_NS))
    ended = waits.ended(nodes)
    # A sync waited for other work if its inferred work ended after the return, or long before it.
    is_wrong = ended > returned + LEFT_BY_CLOCKS_NS
    is_wrong |= (ended <= waits.called_at + RESUMED_NS) & (returned - np.maximum(ended, waits.called_at) > RESUMED_NS)
    is_wrong &= waits.is_sync & ~waits.is_recorded
    waits = waits.without(is_wrong)
    guessed = np.full(len(back), -1)
    guessed[is_wrong] = _ended_within(nodes, launched_at, back[is_wrong], waits.called_at[is_wrong])
    replaced_calls = np.flatnonzero(guessed >= 0)
    waits = waits.instead(replaced_calls, guessed[replaced_calls])
    ended = waits.ended(nodes)
    # Own time of the call: what follows the wait, or all of it if there was nothing left to wait for.
    own = np.clip(returned - np.maximum(ended, waits.called_at), 0, None)
    gap[back] = own
    # A sync without pending work has no lag when there is some to wait for; freeing memory always takes time.
    has_waited = ended > waits.called_at
    lag = np.where(waits.is_sync & ~has_waited, 0, own)[waits.call]
    for at_start in (False, True):
        rows = waits.at_start == at_start
        edges.add(waits.source[rows], back[waits.call[rows]], lag[rows], EdgeKind.SYNC, at_end=not at_start)


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """The waiting calls of one rank: one entry per call in each array."""

    back: Ints
    called_at: Ints
    scope: Ints
    """What the call waits for: `_ONE_PIECE`, `_ONE_STREAM`, `_EVERY_STREAM` or `_EVENT`."""
    lane: Ints
    """The lane of the work that its thread launched last."""


def _awaited(
    calls: _Calls, piece: Ints, until_start: Flags, nodes: RankNodes, device: Ints, launched_at: Ints
) -> tuple[Ints, Ints, Flags]:
    """Return what each call waits for: the work, the call, and whether it waits for the start.

    `piece` is the work of calls that wait for one piece; they wait for its end or, if marked, for its start.
    """
    of_piece = np.flatnonzero(calls.scope == _ONE_PIECE)
    sources, waiting = [piece[of_piece]], [of_piece]
    for number in distinct(nodes.lane[device]).tolist():
        of_lane = sorted_by(launched_at, device[nodes.lane[device] == number])
        place = np.searchsorted(launched_at[of_lane], calls.called_at) - 1
        waits = (calls.scope == _EVERY_STREAM) | ((calls.scope == _ONE_STREAM) & (calls.lane == number))
        rows = np.flatnonzero((place >= 0) & waits)
        sources.append(of_lane[place[rows]])
        waiting.append(rows)
    for source, call in _of_events(calls, nodes, device, launched_at):
        sources.append(source)
        waiting.append(call)
    at_start = np.append(until_start[of_piece], np.zeros(sum(map(len, waiting[1:])), bool))
    return np.concatenate(sources), np.concatenate(waiting), at_start


def _of_events(calls: _Calls, nodes: RankNodes, device: Ints, launched_at: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the work that event syncs wait for, and the calls, if it is always the same piece of work.

    The syncs that follow launches on one stream are compared. The piece of work is given by its stream and its place
    from the last launch there. Many pieces end near the return of one call; only the awaited one always does.
    """
    syncs = np.flatnonzero(calls.scope == _EVENT)
    for number in distinct(calls.lane[syncs]).tolist():
        own = syncs[calls.lane[syncs] == number]
        called_at, returned = calls.called_at[own], nodes.start[calls.back[own]]
        waited = returned - called_at > RESUMED_NS
        best = np.full(len(own), -1)
        smallest_spread_ns = float(_SAME_LATENCY_NS)
        for piece in _pieces_before(nodes, device, launched_at, called_at) if waited.sum() >= LEAST_WAITS else ():
            has_piece = piece >= 0
            if not has_piece[waited].all():
                continue
            latency_ns = returned - nodes.end[piece]
            of_waits = latency_ns[waited]
            usual_ns = np.median(of_waits)
            spread_ns = float(np.abs(of_waits - usual_ns).max())
            is_contradicted = (latency_ns[has_piece] < min(usual_ns, 0) - _SAME_LATENCY_NS).any()
            if spread_ns < smallest_spread_ns and abs(usual_ns) <= RESUMED_NS and not is_contradicted:
                best, smallest_spread_ns = piece, spread_ns
        has_best = best >= 0
        yield best[has_best], own[has_best]


def _pieces_before(nodes: RankNodes, device: Ints, launched_at: Ints, called_at: Ints) -> Iterator[Ints]:
    """Yield, for each stream and place from the last launch, the work there before each call; -1 for none."""
    for number in distinct(nodes.lane[device]).tolist():
        of_lane = sorted_by(launched_at, device[nodes.lane[device] == number])
        last = np.searchsorted(launched_at[of_lane], called_at) - 1
        for place in range(_FURTHEST_BACK):
            yield lookup(of_lane, np.maximum(last - place, -1), missing=-1)


_ONE_PIECE, _ONE_STREAM, _EVERY_STREAM, _EVENT = range(4)
"""What a call waits for: its own copy or the work that the trace names, its stream, all streams, or a CUDA event."""


def _scope(name: str) -> int:
    """Return the scope of the wait of a call with this name."""
    if "Event" in name:
        return _EVENT
    return _ONE_STREAM if "Stream" in name else _EVERY_STREAM


def _last_launch(
    launches: Columns, row: Ints, called_at: Ints, nodes: RankNodes, device: Ints, launched_at: Ints
) -> Ints:
    """Return the work that the calling thread launched last before each call; -1 if it launched none."""
    thread = launches.codes("thread")[0]
    thread_of_work = lookup(thread, rows_of(launches["event"], nodes.launch[device]), missing=-1)
    launched_last = np.full(len(row), -1)
    for number in distinct(thread[row]).tolist():
        of_thread = device[thread_of_work == number]
        calls = np.flatnonzero(thread[row] == number)
        launched_last[calls] = last_by(launched_at, of_thread, by=called_at[calls])
    return launched_last


def _ended_within(nodes: RankNodes, launched_at: Ints, back: Ints, called_at: Ints) -> Ints:
    """Return the last work that was launched before each call and ended within it; -1 if there is none.

    If a call returned long after such work, it waited for what ended next, as exactly as the clocks agree.
    """
    returned = nodes.start[back]
    within, soon_after = (
        _last_ended(nodes, launched_at, returned + uncertainty, called_at)
        for uncertainty in (ROUNDING_NS, LEFT_BY_CLOCKS_NS)
    )
    explained_at = np.where(within >= 0, nodes.end[within], called_at)
    return np.where(returned - explained_at > RESUMED_NS, soon_after, within)


def _last_ended(nodes: RankNodes, launched_at: Ints, returned: Ints, called_at: Ints) -> Ints:
    """Return the last work that was launched before each call and ended between the call and its return; else -1.

    If the clocks of host and device differ, work may seem to end before its launch. Calls before the launch cannot have
    waited for it.
    """
    by_end = sorted_by(nodes.end, np.flatnonzero(nodes.of_device & (launched_at > NEVER)))
    if not len(by_end):
        return np.full(len(returned), -1)
    place = np.searchsorted(nodes.end[by_end], returned, side="right") - 1
    for _ in range(_SEEMINGLY_EARLY):
        is_early = (place >= 0) & (launched_at[by_end[place]] >= called_at)
        if not is_early.any():
            break
        place[is_early] -= 1
    last_ended = lookup(by_end, np.where(place >= 0, place, -1), missing=-1)
    is_within = (last_ended >= 0) & (launched_at[last_ended] < called_at) & (nodes.end[last_ended] > called_at)
    return np.where(is_within, last_ended, -1)
