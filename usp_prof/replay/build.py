"""Building the graph of a run: each rank's nodes and dependencies, and the calls that tie ranks together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, numbered, sorted_within
from usp_prof.replay.dependencies import RankWaits, waits_of
from usp_prof.replay.gloo_transfers import with_asked_posts
from usp_prof.replay.graph import NEVER, Edges, Graph, NodeKind, Nodes
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Flags, Ints
    from usp_prof.tables.table_set import TableSet


_KINDS = {
    "compute": NodeKind.COMPUTE,
    "communication": NodeKind.COMMUNICATION,
    "memcpy": NodeKind.COPY,
    "memset": NodeKind.COPY,
}
_ENDLESS = np.iinfo(np.int64).max
HOST_LANE = "host"
COMPUTING_LANE = "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class RankNodes:
    """One rank's nodes in lane order; `event` and `launch` are its own event numbers, `part` its row of collectives."""

    rank: int
    lane: Ints
    kind: Ints
    start: Ints
    duration: Ints
    step: Ints
    name: tuple[Ints, list[str]]
    axis: tuple[Ints, list[str]]
    event: Ints
    launch: Ints
    part: Ints
    on_device: bool
    lanes: int
    end: Ints = field(init=False)
    """Ends on the rank's own clock."""

    def __post_init__(self) -> None:
        """Work out the ends, which are asked for again and again."""
        object.__setattr__(self, "end", self.start + self.duration)

    @property
    def first_of_lane(self) -> Flags:
        """Nodes that have none before them on their lane."""
        first = np.ones(len(self.lane), dtype=bool)
        first[1:] = self.lane[1:] != self.lane[:-1]
        return first


def nodes_of(tables: TableSet, rank: int) -> RankNodes:
    """Set one rank's nodes up."""
    work = tables.columns("activities", rank)
    codes, kinds = work.codes("kind")
    kind = lookup([_KINDS.get(text, NodeKind.COMPUTE) for text in kinds], codes, missing=0)
    names, texts = work.codes("name")
    axis = work.codes("axis")
    lane = _lanes(work, kind)
    calls = _host_calls(tables.columns("launches", rank), work)
    on_device = bool((work["launch_event"] >= 0).any())
    if not on_device:
        calls = calls[:, :0]
    host_names = np.full(calls.shape[1], len(texts))
    columns = {
        "lane": np.append(lane, np.full(calls.shape[1], lane.max(initial=-1) + 1)),
        "kind": np.append(kind, calls[3]),
        "start": np.append(work["start_ns"], calls[1]),
        "duration": np.append(work["dur_ns"], calls[2]),
        "step": np.append(work["step"], calls[4]),
        "event": np.append(work["event"], calls[0]),
        "launch": np.append(work["launch_event"], np.full(calls.shape[1], -1)),
        "part": np.append(work["collective"], np.full(calls.shape[1], -1)),
    }
    name = np.append(names, host_names)
    axes = np.append(axis[0], np.full(calls.shape[1], -1))
    order = sorted_within(columns["lane"], columns["start"])
    sorted_columns = {key: np.asarray(value, np.int64).take(order) for key, value in columns.items()}
    return RankNodes(
        rank,
        name=(name[order], [*texts, HOST_LANE]),
        axis=(axes[order], axis[1]),
        on_device=on_device,
        lanes=int(columns["lane"].max(initial=-1)) + 1,
        **sorted_columns,
    )


def _lanes(work: Columns, kind: Ints) -> Ints:
    """Give lanes numbers: threads that compute are one (they take turns), posted sends and receives one each."""
    codes, texts = work.codes("lane")
    merged = {text: COMPUTING_LANE if text.split(" ")[0] == COMPUTING_LANE else text for text in texts}
    distinct = sorted(set(merged.values()))
    place = {text: number for number, text in enumerate(distinct)}
    lane = lookup([place[merged[text]] for text in texts], codes, missing=0)
    posted = lookup(["p2p" in text for text in texts], codes, missing=False) & (kind == NodeKind.COMMUNICATION)
    lane[posted] = len(distinct) + np.arange(int(posted.sum()))
    return lane


def _host_calls(launches: Columns, work: Columns) -> Ints:
    """Give the host's calls that start device work or wait for it; a waiting one also comes back.

    A thread that never starts device work (NCCL's watchdog, a loader that pins memory) is not the host: what it waits
    for holds nothing up. Rows: event, start, duration, kind, step.
    """
    starts = launches["kernels"] > 0
    thread = launches.codes("thread")[0]
    issues = np.zeros(int(thread.max(initial=-1)) + 2, dtype=bool)  # by thread; the last: calls whose thread is unknown
    issues[thread[starts]] = True
    waits = launches.matches("kind", "sync") | launches["blocking"] | _outlasts_copy(launches, work)
    waits &= issues[thread]
    rows = np.flatnonzero(waits | starts)
    waits = waits[rows]
    event, start, length = (launches[name][rows] for name in ("event", "start_ns", "dur_ns"))
    step = launches["step"][rows]
    call = np.stack([event, start, np.where(waits, 0, length), np.full(len(rows), int(NodeKind.HOST)), step])
    back = np.stack(
        [event, start + length, np.zeros(len(rows), np.int64), np.full(len(rows), int(NodeKind.RETURN)), step]
    )
    return np.concatenate([call, back[:, waits]], axis=1)


def _outlasts_copy(launches: Columns, work: Columns) -> Flags:
    """Mark copies during whose call the copy itself ended: memory that is not pinned makes an async call wait."""
    ended = np.full(int(max(launches["event"].max(initial=-1), work["launch_event"].max(initial=-1))) + 2, _ENDLESS)
    of_call = work["launch_event"] >= 0
    ended[work["launch_event"][of_call]] = (work["start_ns"] + work["dur_ns"])[of_call]
    return np.asarray(
        launches.matches("kind", "memcpy") & (ended[launches["event"]] <= launches["start_ns"] + launches["dur_ns"])
    )


_DRIFT_NS, _DRIFT_SHARE = 1_000, 1_000  # a microsecond, and a thousandth of the wait: ten times any clock's drift


def graph_of(tables: TableSet) -> Graph:
    """Build the graph of a run, once."""
    return tables.memo("whatif graph", lambda: with_asked_posts(_build(tables)))


def _build(tables: TableSet) -> Graph:
    clocks = clock.of(tables)
    ranks = [nodes_of(tables, rank) for rank in tables.ranks]
    times = [[clocks.align(nodes.rank, when) for when in (nodes.start, nodes.end)] for nodes in ranks]
    found = [_on_one_clock(nodes, waits_of(tables, nodes), *when) for nodes, when in zip(ranks, times, strict=True)]
    waits = [each for each, _ in found]
    base = np.cumsum([0, *(len(nodes.lane) for nodes in ranks)]).tolist()
    lane_base = np.cumsum([0, *(nodes.lanes for nodes in ranks)])
    start, end = (np.concatenate(when) for when in zip(*times, strict=True))
    names, axes = _texts(ranks, "name"), _texts(ranks, "axis")
    nodes = Nodes(
        np.repeat([nodes.rank for nodes in ranks], np.diff(base)),
        np.concatenate([nodes.lane + low for nodes, low in zip(ranks, lane_base[:-1], strict=True)]),
        np.concatenate([nodes.kind for nodes in ranks]),
        start,
        end - start,
        np.concatenate([nodes.step for nodes in ranks]),
        axes[0],
        names[0],
        _calls(tables, ranks, base[-1]),
        np.concatenate([nodes.event for nodes in ranks]),
    )
    edges = Edges(
        np.concatenate([each.source + low for each, low in zip(waits, base[:-1], strict=True)]),
        np.concatenate([each.at_end for each in waits]),
        np.concatenate([each.target + low for each, low in zip(waits, base[:-1], strict=True)]),
        np.concatenate([each.lag for each in waits]),
        np.concatenate([each.kind for each in waits]),
    )
    transfer, tied = _transfers(nodes)
    gap, earliest = (np.concatenate([getattr(each, name) for each in waits]) for name in ("gap", "earliest"))
    dropped = sum(count for _, count in found)
    return Graph(nodes, gap, earliest, edges, nodes.duration, transfer, tied, axes[1], names[1], dropped)


def _on_one_clock(nodes: RankNodes, waits: RankWaits, start: Ints, end: Ints) -> tuple[RankWaits, int]:
    """Give one rank's edges by target, on the common clock, with its gaps: a replay of them gives what was measured.

    Edges that contradict the measured order are dropped, and counted.
    """
    arrived = np.where(waits.at_end, end[waits.source], start[waits.source])
    good = arrived + np.minimum(waits.lag, 0) <= start[waits.target]
    order = np.flatnonzero(good)
    order = order[np.argsort(waits.target[order], kind="stable")]
    source, target, kind, arrived = (each[order] for each in (waits.source, waits.target, waits.kind, arrived))
    lag = np.minimum(waits.lag[order], start[target] - arrived)
    earliest = np.where(waits.earliest == nodes.start, start, NEVER)
    lag, gap, earliest = _settled(nodes.first_of_lane, (start, end), (target, arrived, lag), waits.gap, earliest)
    return RankWaits(source, waits.at_end[order], target, lag, kind, gap, earliest), len(good) - len(order)


def _settled(
    first: Flags, moments: tuple[Ints, Ints], edges: tuple[Ints, Ints, Ints], gap: Ints, earliest: Ints
) -> tuple[Ints, Ints, Ints]:
    """Make up for what drift, rounding and dropped edges left unexplained: then the replay is exact.

    The few nanoseconds of drift go to the edge that was waited for, else all of that wait would become think time
    which no edit can shorten; what is larger is think time. `edges` are targets, when their sources were over, lags.
    """
    (start, end), (target, over, lag) = moments, edges
    room = np.where(first, 0, start - np.roll(end, 1))
    gap = np.where(first, 0, np.minimum(gap, room))
    own = np.where(first, earliest, start - room + gap)
    arrived = over + lag
    bound = own.copy()
    np.maximum.at(bound, target, arrived)
    short, waited = bound < start, bound > own
    missing = np.where(short & waited, start - bound, 0)
    drifted = (missing > 0) & (missing <= _DRIFT_NS + room // _DRIFT_SHARE)
    held = drifted[target] & (arrived == bound[target])
    lag = lag + np.where(held, missing[target], 0)
    short &= ~drifted
    return lag, np.where(short & ~first, room, gap), np.where(short & first, start, earliest)


def _texts(ranks: list[RankNodes], which: str) -> tuple[Ints, tuple[str, ...]]:
    """Bring the ranks' codes of a text to one list of texts."""
    known: dict[str, int] = {}
    columns = []
    for nodes in ranks:
        codes, texts = getattr(nodes, which)
        numbers = np.array([known.setdefault(text, len(known)) for text in texts] + [-1], np.int64)
        columns.append(numbers[codes])
    return np.concatenate(columns), tuple(known)


def _calls(tables: TableSet, ranks: list[RankNodes], count: int) -> Ints:
    """Give each part its call, where at least two members were read."""
    call = np.full(count, -1, np.int64)
    matched = calls.of(tables)
    found = matched.part_columns()
    if not len(found):
        return call
    read = np.bincount(found["call"])
    low = 0
    for nodes in ranks:
        mine = matched.rows_of(nodes.rank)
        mine = mine[read[found["call"][mine]] > 1]
        width = max(int(nodes.part.max(initial=-1)), int(found["part"][mine].max(initial=-1))) + 2
        of_part = np.full(width, -1, np.int64)
        of_part[found["part"][mine]] = found["call"][mine]
        call[low : low + len(nodes.lane)] = of_part[nodes.part]
        low += len(nodes.lane)
    joined = call >= 0
    call[joined] = numbered(call[joined])[1]
    return call


def _transfers(nodes: Nodes) -> tuple[Ints, Flags]:
    """Measure from a call's last begin to each member's end; who ended before that was not waiting."""
    transfer, tied = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), dtype=bool)
    rows = np.flatnonzero((nodes.call >= 0) & (nodes.kind == NodeKind.COMMUNICATION))
    if not len(rows):
        return transfer, tied
    last = np.full(int(nodes.call.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, nodes.call[rows], nodes.start[rows])
    transfer[rows] = nodes.end[rows] - last[nodes.call[rows]]
    tied[rows] = transfer[rows] >= 0
    return transfer, tied
