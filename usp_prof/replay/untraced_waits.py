"""Untraced waits: times in which a host waits for the device without a call in the trace.

The caching allocator waits for an event before it frees, a timer reads an event, NCCL polls, a launch blocks while the
launch queue is full. Such waits look like pauses, but they end when device work ends:

    host        launches a, b, c |~~~~~~~~~~ silence ~~~~~~~~~~| launches d
    device             aaaa bbbbbbbbbbbbbb ccccccccccccccccccc |

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
from usp_prof.columns.rows import combinations, distinct, last_by, lookup, rows_of, sorted_by
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, ROUNDING_NS, EdgeKind, NodeKind
from usp_prof.replay.host_waits import RESUMED_NS
from usp_prof.replay.rank_edges import PartialWaits
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.satisfied_waits import PlacesOfRank, add_satisfied_waits
from usp_prof.tables.table_set import TableSet

UNTRACED_WAIT_NS = 1_000_000
"""A shorter gap of the host is ordinary work, even if it happens to end together with device work."""
FULL_QUEUE = 512
"""With this many launches pending, a launch can block: the driver's queue holds about 1,000."""
_SAME_LENGTH = 0.25
"""A silence is as long as others if it differs from their median by at most this share of it."""
_FEWEST, _CHANCE = 3, 0.05
"""Silences wait for work if at least this number of them end with it, and at most this share of random moments would.
Three would by chance in 1 of 8,000 cases."""


@dataclass(frozen=True, slots=True, eq=False)
class Silences:
    """The silences of one rank's host, and the device work that ended with each."""

    host: Ints
    """Node of the launch before which the host was silent."""
    stopped_at: Ints
    """When the host was last seen before the silence."""
    resumed_at: Ints
    """When it was seen again."""
    place: list[str]
    """The calls around the silence, by the names of the work that they launch, or their own names."""
    last_of_stream: Ints
    """Work that the host may have waited for because it was the last on its stream; -1 if there is none."""
    ended_with: list[dict[str, int]]
    """By name: nodes of work launched before the silence that ended when the host resumed."""
    is_busy: Flags
    """The device had work when the silence began."""
    is_idle: Flags
    """The device had no work left well before the host resumed."""
    chance: Mapping[str, float]
    """By name of work: share of random moments at which some of it would just have ended."""

    @property
    def length_ns(self) -> Ints:
        """Lengths of the silences."""
        return self.resumed_at - self.stopped_at


def _silences(tables: TableSet, rank: PartialWaits) -> Silences:
    """Return the silences in the remaining gaps of one rank's host."""
    nodes, gap = rank.nodes, rank.gap
    host = np.flatnonzero((nodes.kind == NodeKind.HOST) & (gap > UNTRACED_WAIT_NS))
    device = np.flatnonzero(nodes.of_device)
    if not len(device):
        host = host[:0]
    stopped_at, resumed_at = _longest_silences(tables, nodes, nodes.start[host] - gap[host], nodes.start[host])
    is_silent = resumed_at - stopped_at > UNTRACED_WAIT_NS
    host, stopped_at, resumed_at = host[is_silent], stopped_at[is_silent], resumed_at[is_silent]
    idle_from = _end_of_all(nodes, device, stopped_at)
    ended_with = _ended_with(nodes, device, stopped_at, resumed_at)
    place, places = _places(tables, nodes, host)
    return Silences(
        host=host,
        stopped_at=stopped_at,
        resumed_at=resumed_at,
        place=[places[code] for code in place.tolist()],
        last_of_stream=_last_of_stream(nodes, device, stopped_at, resumed_at),
        ended_with=ended_with,
        is_busy=idle_from > stopped_at,
        is_idle=idle_from < resumed_at - RESUMED_NS,
        chance=_chance(nodes, device, {name for work_by_name in ended_with for name in work_by_name}),
    )


def _longest_silences(tables: TableSet, nodes: RankNodes, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the longest time within each gap in which no op or call of a launching thread starts or ends."""
    if not len(begin):
        return begin, end
    launches = tables.columns("launches", nodes.rank)
    code, names = launches.codes("thread")
    # Only threads that launch work: others, such as NCCL's watchdog, continue while the host waits.
    launching = {names[thread] for thread in distinct(code[launches["kernels"] > 0]).tolist() if thread >= 0}
    moments = [begin, end]
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


def _end_of_all(nodes: RankNodes, device: Ints, moment: Ints) -> Ints:
    """Return for each moment the end of all work that was launched before it."""
    by_launch = sorted_by(nodes.launched_at, device)
    latest_end = np.maximum.accumulate(nodes.end[by_launch])
    last = np.searchsorted(nodes.launched_at[by_launch], moment, side="right") - 1
    return lookup(latest_end, last, missing=NEVER)


def _places(tables: TableSet, nodes: RankNodes, host: Ints) -> tuple[Ints, list[str]]:
    """Return the place of each launch, as codes and texts: the call before it and its own.

    A call has the name of the work that it launches, or its own name. The same call may be in several places of a step.
    """
    launches = tables.columns("launches", nodes.rank)
    device = np.flatnonzero(nodes.of_device)
    call_code, calls = launches.codes("name")
    names = [*nodes.name[1], *calls, ""]

    def code_of(node: Ints) -> Ints:
        event = nodes.event[node]
        call = lookup(call_code, rows_of(launches["event"], event), missing=-1)
        work = lookup(nodes.name[0][device], rows_of(nodes.launch[device], event), missing=-1)
        return np.where(work >= 0, work, np.where(call >= 0, len(nodes.name[1]) + call, -1))

    pairs, place = combinations(code_of(np.maximum(host - 1, 0)), code_of(host))
    return place, [f"{names[before]} > {names[behind]}" for before, behind in pairs]


def _last_of_stream(nodes: RankNodes, device: Ints, stopped_at: Ints, resumed_at: Ints) -> Ints:
    """Return the work that ended last before each host resumed, if it was the last launched on its stream; else -1.

    With a full launch queue, it need not be the last one.
    """
    launched_at = nodes.launched_at
    awaited = last_by(nodes.end, device, by=resumed_at + ROUNDING_NS)
    is_launched = (awaited >= 0) & (launched_at[awaited] > NEVER) & (launched_at[awaited] <= stopped_at)
    is_soon = (nodes.end[awaited] > stopped_at) & (resumed_at - nodes.end[awaited] <= RESUMED_NS)
    # Nodes are sorted by lane, so the next node is the work that follows the awaited work on its stream.
    follower = np.minimum(awaited + 1, len(nodes.lane) - 1)
    is_followed = (nodes.lane[follower] == nodes.lane[awaited]) & (follower != awaited)
    is_drained = ~is_followed | (launched_at[follower] > stopped_at)
    # Pending when the host continued: launched but not started.
    launched_by_then = np.searchsorted(np.sort(launched_at[device]), resumed_at)
    begun_by_then = np.searchsorted(np.sort(nodes.start[device]), resumed_at)
    is_full = launched_by_then - begun_by_then >= FULL_QUEUE
    return np.where(is_launched & is_soon & (is_drained | is_full), awaited, -1)


def _ended_with(nodes: RankNodes, device: Ints, stopped_at: Ints, resumed_at: Ints) -> list[dict[str, int]]:
    """Return by name the work that ended when each host resumed, as exactly as the clocks of host and device agree.

    Work without a known launch was launched before recording began.
    """
    by_end = sorted_by(nodes.end, device)
    end = nodes.end[by_end]
    first = np.searchsorted(end, np.maximum(stopped_at, resumed_at - RESUMED_NS), side="right").tolist()
    past_last = np.searchsorted(end, resumed_at + LEFT_BY_CLOCKS_NS, side="right").tolist()
    name, names = nodes.name
    return [
        {names[name[node]]: node for node in by_end[low:high].tolist() if nodes.launched_at[node] <= stopped}
        for low, high, stopped in zip(first, past_last, stopped_at.tolist(), strict=True)
    ]


def _chance(nodes: RankNodes, device: Ints, names: set[str]) -> dict[str, float]:
    """Return by name the share of the recording in which work of that name has just ended or is about to."""
    if not names:
        return {}
    recording_ns = max(int(nodes.end[device].max() - nodes.start[device].min()), 1)
    window_ns = RESUMED_NS + LEFT_BY_CLOCKS_NS
    number = np.bincount(nodes.name[0][device], minlength=len(nodes.name[1])).tolist()
    return {
        name: min(count * window_ns / recording_ns, 1.0)
        for name, count in zip(nodes.name[1], number, strict=True)
        if name in names
    }


# Waits among the silences, based on all ranks together.


def add_untraced_waits(tables: TableSet, ranks: Sequence[PartialWaits]) -> None:
    """Add the untraced waits of all ranks to their edges, and remove them from their gaps."""
    silences = [_silences(tables, rank) for rank in ranks]
    repeated = _repeated(silences)
    awaited = [_awaited(silences_of_rank, repeated) for silences_of_rank in silences]
    wait_places = _wait_places(silences, awaited)
    rows = zip(ranks, silences, awaited, strict=True)
    add_satisfied_waits([_with_waits(tables, rank, silent, work, wait_places) for rank, silent, work in rows])


def _with_waits(
    tables: TableSet, rank: PartialWaits, silences: Silences, awaited: Ints, wait_places: set[str]
) -> PlacesOfRank:
    """Add the silences of one rank that are waits; return all launches at the places of these waits."""
    nodes, gap = rank.nodes, rank.gap
    idle_ns = _idle_length_ns(silences)
    is_wait = (awaited >= 0) & np.array([place in wait_places for place in silences.place], bool)
    is_wait &= np.abs(silences.length_ns - idle_ns) > _SAME_LENGTH * idle_ns
    work, launch = awaited[is_wait], silences.host[is_wait]
    rank.edges.add(work, launch, nodes.start[launch] - nodes.end[work], EdgeKind.SYNC)
    # The time before and after the silence is the host's own.
    after_ns = nodes.start[launch] - silences.resumed_at[is_wait]
    gap[launch] = np.maximum(gap[launch] - silences.length_ns[is_wait], after_ns)
    all_launches, place = _launches_at(tables, nodes, {silences.place[row] for row in np.flatnonzero(is_wait).tolist()})
    return PlacesOfRank(nodes, rank.edges, all_launches, place, lookup(work, rows_of(launch, all_launches), missing=-1))


def _repeated(silences: Sequence[Silences]) -> dict[tuple[str, str], int]:
    """Return how often silences at the same place end with the same work, if that is too often to be chance.

    An event may be recorded before the last work of a stream. A host that waits for it is silent until the same work
    has ended, in every step and on every rank; a host that pauses is not.
    """
    cases = Counter(
        (place, name)
        for rank in silences
        for place, work_by_name in zip(rank.place, rank.ended_with, strict=True)
        for name in work_by_name
    )
    return {
        (place, name): number
        for (place, name), number in cases.items()
        if number >= _FEWEST and max(rank.chance.get(name, 0.0) for rank in silences) <= _CHANCE
    }


def _awaited(silences: Silences, repeated: Mapping[tuple[str, str], int]) -> Ints:
    """Return the work that the host may have waited for in each silence; -1 if there is none.

    It is the last of its stream or, without one, the work with which most silences at the place end.
    """
    awaited = silences.last_of_stream.copy()
    for row in np.flatnonzero(awaited < 0).tolist():
        place, work_by_name = silences.place[row], silences.ended_with[row]
        candidates = [(repeated.get((place, name), 0), node) for name, node in work_by_name.items()]
        number, node = max(candidates, default=(0, -1))
        if number:
            awaited[row] = node
    return awaited


def _wait_places(silences: Sequence[Silences], awaited: Sequence[Ints]) -> set[str]:
    """Return the places at which at least half of the silences on a busy device are waits."""
    waits: Counter[str] = Counter()
    candidates: Counter[str] = Counter()
    for rank, work in zip(silences, awaited, strict=True):
        may_wait, place = work >= 0, np.array(rank.place, object)
        waits.update(place[may_wait])
        candidates.update(place[may_wait | rank.is_busy])
    return {place for place in candidates if 2 * waits[place] >= candidates[place]}


def _idle_length_ns(silences: Silences) -> Floats:
    """Return for each silence the median length of those on an idle device at the same place; 0 for none."""
    idle: dict[str, list[int]] = {}
    for place, is_idle, length in zip(
        silences.place, silences.is_idle.tolist(), silences.length_ns.tolist(), strict=True
    ):
        if is_idle:
            idle.setdefault(place, []).append(length)
    median = {place: float(np.median(lengths)) for place, lengths in idle.items()}
    return np.array([median.get(place, 0.0) for place in silences.place])


def _launches_at(tables: TableSet, nodes: RankNodes, places: set[str]) -> tuple[Ints, list[str]]:
    """Return all launches of one rank at some places, and the place of each."""
    host = np.flatnonzero(nodes.kind == NodeKind.HOST)
    place, texts = _places(tables, nodes, host)
    is_chosen = np.array([text in places for text in texts], bool)[place]
    return host[is_chosen], [texts[code] for code in place[is_chosen].tolist()]
