"""Untraced waits: times in which a host waits for the device without a call in the trace.

The caching allocator waits for an event before it frees, a timer reads an event, NCCL polls, a launch blocks while the
launch queue is full. Such waits look like pauses, but they end when device work ends:

  1. Within a gap between two launches, no op or call starts or ends for at least UNTRACED_WAIT_NS.
  2. This silence ends within RESUMED_NS after the end of work that was launched before it.
  3. That work was the last one launched on its stream by then, or the launch queue was full, or the silences at the
     same place (between the same calls) end with the same work too often to be chance (see `_repeated`).
  4. This holds for at least half of the silences on a busy device at that place, on all ranks.
  5. At that place, there are no silences of this length that lasted although all work had ended.

Without the third condition, any pause while the device is busy would look like a wait. Without the last two, a data
loader that once ends together with the device would. Where the work had ended, there is no silence: see
`satisfied_waits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import distinct, last_by, lookup, rows_of, sorted_by
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, ROUNDING_NS, EdgeKind, NodeKind
from usp_prof.replay.host_waits import RESUMED_NS
from usp_prof.replay.rank_edges import RankEdges
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.satisfied_waits import PlacesOfRank, add_satisfied_waits
from usp_prof.tables.table_set import TableSet

UNTRACED_WAIT_NS = 1_000_000
"""A shorter gap of the host is ordinary work, even if it happens to end together with device work."""
FULL_QUEUE = 512
"""With this many launches pending, a launch can block: the driver's queue holds about 1,000."""
_VARIES = 0.25
"""A silence is as long as others if it differs from their median by at most this share."""
_FEWEST, _CHANCE = 3, 0.05
"""Silences wait for work if at least this number of them end with it, and at most this share of random moments would.
Three would by chance in 1 of 8,000 cases."""


@dataclass(frozen=True, slots=True, eq=False)
class Silences:
    """The silences of one rank's host, and the device work that ended with each."""

    host: Ints
    """The launch before which the host was silent."""
    stopped: Ints
    """When the host was last seen before the silence."""
    resumed: Ints
    """When it was seen again."""
    place: list[str]
    """The calls around the silence, by the names of the work that they launch, or their own names."""
    last: Ints
    """Work that the host may have waited for because it was the last on its stream; -1 if there is none."""
    ended: list[dict[str, int]]
    """By name: work launched before the silence that ended when the host resumed."""
    is_busy: Flags
    """The device had work when the silence began."""
    is_idle: Flags
    """The device had no work left well before the host resumed."""
    chance: Mapping[str, float]
    """By name of work: share of random moments at which some of it would just have ended."""


def silences_of(tables: TableSet, nodes: RankNodes, gap: Ints, launched_at: Ints) -> Silences:
    """Return the silences in the remaining gaps of one rank's host."""
    host = np.flatnonzero((nodes.kind == NodeKind.HOST) & (gap > UNTRACED_WAIT_NS))
    device = np.flatnonzero(nodes.of_device)
    if not len(device):
        host = host[:0]
    stopped, resumed = _longest_silences(tables, nodes, nodes.start[host] - gap[host], nodes.start[host])
    is_silent = resumed - stopped > UNTRACED_WAIT_NS
    host, stopped, resumed = host[is_silent], stopped[is_silent], resumed[is_silent]
    idle_from = _end_of_all(nodes, device, launched_at, stopped)
    ended = _ended(nodes, device, launched_at, stopped, resumed)
    return Silences(
        host=host,
        stopped=stopped,
        resumed=resumed,
        place=_places(tables, nodes, device, host),
        last=_last_of_stream(nodes, device, launched_at, stopped, resumed),
        ended=ended,
        is_busy=idle_from > stopped,
        is_idle=idle_from < resumed - RESUMED_NS,
        chance=_chance(nodes, device, {work for at_once in ended for work in at_once}),
    )


def _places(tables: TableSet, nodes: RankNodes, device: Ints, host: Ints) -> list[str]:
    """Return the calls around each silence; the same call may be in several places of a step."""
    names = [*nodes.name[1], *tables.columns("launches", nodes.rank).codes("name")[1], ""]
    around = [_codes_of_calls(tables, nodes, device, calls).tolist() for calls in (np.maximum(host - 1, 0), host)]
    return [f"{names[before]} > {names[behind]}" for before, behind in zip(*around, strict=True)]


def _codes_of_calls(tables: TableSet, nodes: RankNodes, device: Ints, host: Ints) -> Ints:
    """Return for each host node the code of the work that it launched, or of the call's own name; -1 without a call."""
    launches = tables.columns("launches", nodes.rank)
    event = nodes.event[host]
    call = lookup(launches.codes("name")[0], rows_of(launches["event"], event), missing=-1)
    work = lookup(nodes.name[0][device], rows_of(nodes.launch[device], event), missing=-1)
    return np.where(work >= 0, work, np.where(call >= 0, len(nodes.name[1]) + call, -1))


def _launches_at(tables: TableSet, nodes: RankNodes, silences: Silences, places: set[str]) -> tuple[Ints, list[str]]:
    """Return all launches of one rank at the given places of its silences, and the place of each."""
    device, host = np.flatnonzero(nodes.of_device), np.flatnonzero(nodes.kind == NodeKind.HOST)
    code = _codes_of_calls(tables, nodes, device, np.arange(len(nodes.kind)))
    pair = code[np.maximum(host - 1, 0)] * (int(code.max(initial=0)) + 1) + code[host]
    pair_of_host = dict(zip(host.tolist(), pair.tolist(), strict=True))
    place_of_pair = {
        pair_of_host[node]: place
        for node, place in zip(silences.host.tolist(), silences.place, strict=True)
        if place in places
    }
    chosen = np.flatnonzero(np.isin(pair, [*place_of_pair]))
    return host[chosen], [place_of_pair[number] for number in pair[chosen].tolist()]


def _last_of_stream(nodes: RankNodes, device: Ints, launched_at: Ints, stopped: Ints, resumed: Ints) -> Ints:
    """Return the work that ended last before each host resumed, if it was the last launched on its stream; else -1.

    With a full launch queue, it need not be the last one.
    """
    awaited = last_by(nodes.end, device, by=resumed + ROUNDING_NS)
    is_launched = (awaited >= 0) & (launched_at[awaited] > NEVER) & (launched_at[awaited] <= stopped)
    is_soon = (nodes.end[awaited] > stopped) & (resumed - nodes.end[awaited] <= RESUMED_NS)
    # Nodes are sorted by lane, so the next node is the work that follows the awaited work on its stream.
    follower = np.minimum(awaited + 1, len(nodes.lane) - 1)
    is_followed = (nodes.lane[follower] == nodes.lane[awaited]) & (follower != awaited)
    is_drained = ~is_followed | (launched_at[follower] > stopped)
    # Pending when the host continued: launched but not started.
    launched_by_then = np.searchsorted(np.sort(launched_at[device]), resumed)
    begun_by_then = np.searchsorted(np.sort(nodes.start[device]), resumed)
    is_full = launched_by_then - begun_by_then >= FULL_QUEUE
    return np.where(is_launched & is_soon & (is_drained | is_full), awaited, -1)


def _ended(nodes: RankNodes, device: Ints, launched_at: Ints, stopped: Ints, resumed: Ints) -> list[dict[str, int]]:
    """Return by name the work that ended when each host resumed, as exactly as the clocks of host and device agree.

    Work without a known launch was launched before recording began.
    """
    by_end = sorted_by(nodes.end, device)
    low = np.searchsorted(nodes.end[by_end], np.maximum(stopped, resumed - RESUMED_NS), side="right").tolist()
    high = np.searchsorted(nodes.end[by_end], resumed + LEFT_BY_CLOCKS_NS, side="right").tolist()
    name, names = nodes.name
    return [
        {names[name[node]]: node for node in by_end[first:end].tolist() if launched_at[node] <= before}
        for first, end, before in zip(low, high, stopped.tolist(), strict=True)
    ]


def _chance(nodes: RankNodes, device: Ints, names: set[str]) -> dict[str, float]:
    """Return by name the share of the recording in which work of that name has just ended or is about to."""
    if not names:
        return {}
    length = int(nodes.end[device].max() - nodes.start[device].min())
    number = np.bincount(nodes.name[0][device], minlength=len(nodes.name[1])).tolist()
    window = RESUMED_NS + LEFT_BY_CLOCKS_NS
    return {
        text: min(count * window / max(length, 1), 1.0)
        for text, count in zip(nodes.name[1], number, strict=True)
        if text in names
    }


def add_untraced_waits(
    tables: TableSet, of_ranks: Sequence[tuple[RankNodes, RankEdges, Ints, Ints]], silences: Sequence[Silences]
) -> None:
    """Add the untraced waits of all ranks, given each rank's edges, gaps, and when its work was launched."""
    repeated = _repeated(silences)
    awaited = [_awaited(own, repeated) for own in silences]
    usual = _usual(silences, awaited)
    places = []
    for (nodes, edges, gap, launched_at), own, source in zip(of_ranks, silences, awaited, strict=True):
        length = own.resumed - own.stopped
        idle_length = _idle_length(own, length)
        waits = (source >= 0) & np.array([place in usual for place in own.place], bool)
        waits &= np.abs(length - idle_length) > _VARIES * idle_length
        target = own.host[waits]
        # The time before and after the silence is the host's own.
        after = nodes.start[target] - own.resumed[waits]
        edges.add(source[waits], target, nodes.start[target] - nodes.end[source[waits]], EdgeKind.SYNC)
        gap[target] = np.maximum(gap[target] - length[waits], after)
        host, place = _launches_at(tables, nodes, own, {own.place[row] for row in np.flatnonzero(waits).tolist()})
        work = lookup(source[waits], rows_of(target, host), missing=-1)
        places.append(PlacesOfRank(nodes, edges, launched_at, host, place, work))
    add_satisfied_waits(places)


def _repeated(silences: Sequence[Silences]) -> dict[tuple[str, str], int]:
    """Return how often silences at the same place end with the same work, if that is too often to be chance.

    An event may be recorded before the last work of a stream. A host that waits for it is silent until the same work
    has ended, in every step and on every rank; a host that pauses is not.
    """
    cases = Counter(
        (place, work)
        for own in silences
        for place, at_once in zip(own.place, own.ended, strict=True)
        for work in at_once
    )
    return {
        (place, work): number
        for (place, work), number in cases.items()
        if number >= _FEWEST and max(own.chance.get(work, 0.0) for own in silences) <= _CHANCE
    }


def _awaited(silences: Silences, repeated: Mapping[tuple[str, str], int]) -> Ints:
    """Return the work that the host may have waited for in each silence; -1 if there is none."""
    awaited = silences.last.copy()
    for row in np.flatnonzero(awaited < 0).tolist():
        place, at_once = silences.place[row], silences.ended[row]
        again = [(repeated[place, work], node) for work, node in at_once.items() if (place, work) in repeated]
        if again:
            awaited[row] = max(again)[1]
    return awaited


def _usual(silences: Sequence[Silences], awaited: Sequence[Ints]) -> set[str]:
    """Return the places at which at least half of the silences on a busy device are waits."""
    waits: Counter[str] = Counter()
    candidates: Counter[str] = Counter()
    for own, source in zip(silences, awaited, strict=True):
        for place, node, is_busy in zip(own.place, source.tolist(), own.is_busy.tolist(), strict=True):
            waits[place] += node >= 0
            candidates[place] += node >= 0 or is_busy
    return {place for place in candidates if 2 * waits[place] >= candidates[place]}


def _end_of_all(nodes: RankNodes, device: Ints, launched_at: Ints, when: Ints) -> Ints:
    """Return for each moment the end of all work that was launched before it."""
    order = sorted_by(launched_at, device)
    latest_end = np.maximum.accumulate(nodes.end[order])
    last = np.searchsorted(launched_at[order], when, side="right") - 1
    return lookup(latest_end, last, missing=NEVER)


def _idle_length(silences: Silences, length: Ints) -> Floats:
    """Return the median length of the silences on an idle device at the same place; 0 for none."""
    idle: dict[str, list[int]] = {}
    for place, is_idle, took in zip(silences.place, silences.is_idle.tolist(), length.tolist(), strict=True):
        if is_idle:
            idle.setdefault(place, []).append(took)
    return np.array([np.median(idle.get(place, [0])) for place in silences.place])


def _longest_silences(tables: TableSet, nodes: RankNodes, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the longest time within each gap in which no op or call of a launching thread starts or ends."""
    if not len(begin):
        return begin, end
    launches, moments = tables.columns("launches", nodes.rank), [begin, end]
    code, names = launches.codes("thread")
    # Only threads that launch work: others, such as NCCL's watchdog, continue while the host waits.
    launching = {names[thread] for thread in distinct(code[launches["kernels"] > 0]).tolist() if thread >= 0}
    for rows in (launches, tables.columns("ops", nodes.rank)):
        chosen = rows.satisfies("thread", lambda name: name in launching)
        start = rows["start_ns"][chosen] + nodes.host_shift
        moments += [start, start + rows["dur_ns"][chosen]]
    moment = distinct(np.concatenate(moments))
    low, high = np.searchsorted(moment, begin), np.searchsorted(moment, end)
    silence = np.append(np.diff(moment), 0)
    # By gap: index of the moment at which the longest silence starts.
    longest = np.array([first + int(np.argmax(silence[first:last])) for first, last in zip(low, high, strict=True)])
    return moment[longest], moment[longest + 1]
