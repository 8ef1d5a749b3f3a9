"""Building the graph of a run: each rank's nodes and dependencies, and the calls that tie ranks together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_of_run, numbered, sorted_by, sorted_within, stacked_codes
from usp_prof.replay.dependencies import RankWaits, waits_of
from usp_prof.replay.gloo_transfers import with_asked_posts
from usp_prof.replay.graph import HOST_KINDS, NEVER, Edges, Graph, NodeKind, Nodes
from usp_prof.replay.host_waits import usual_launch_ns, waited_for_room
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
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
    """One rank's nodes, sorted by lane and start: one entry a node in each array."""

    rank: int
    lane: Ints
    kind: Ints
    """Of `NodeKind`."""
    start: Ints
    duration: Ints
    """Both on the rank's own clock."""
    step: Ints
    """-1 outside of all steps."""
    name: tuple[Ints, list[str]]
    """Codes and texts."""
    axis: tuple[Ints, list[str]]
    """Codes and texts; -1 for calls of the host."""
    event: Ints
    """Its event among those of its rank's file."""
    launch: Ints
    """Event of the call that launched it; -1 where that is not in the trace."""
    part: Ints
    """Row of its rank's `collectives`; -1 for what is no communication."""
    on_device: bool
    """Some work was launched: the rank has a device beside its host."""
    lanes: int
    """How many lanes it has."""
    end: Ints = field(init=False)
    """Ends on the rank's own clock."""
    of_device: Flags = field(init=False)
    """What the device did; on ranks without one, all nodes."""

    def __post_init__(self) -> None:
        """Work out what is asked for again and again."""
        object.__setattr__(self, "end", self.start + self.duration)
        object.__setattr__(self, "of_device", np.isin(self.kind, HOST_KINDS, invert=True))

    @property
    def first_of_lane(self) -> Flags:
        """Nodes that have none before them on their lane."""
        return first_of_run(self.lane)


def nodes_of(tables: TableSet, rank: int) -> RankNodes:
    """Set one rank's nodes up."""
    work = tables.columns("activities", rank)
    kind = work.by_text("kind", lambda text: _KINDS.get(text, NodeKind.COMPUTE), missing=0)
    names, texts = work.codes("name")
    axis = work.codes("axis")
    lane = _lanes(work, kind)
    host = _host_calls(tables.columns("launches", rank), work)
    on_device = bool((work["launch_event"] >= 0).any())
    if not on_device:
        host = {column: values[:0] for column, values in host.items()}
    # Device work, then the host's calls on a lane of their own behind all others.
    none = np.full(len(host["event"]), -1)
    columns = {
        "lane": np.append(lane, none + lane.max(initial=-1) + 2),
        "kind": np.append(kind, host["kind"]),
        "start": np.append(work["start_ns"], host["start"]),
        "duration": np.append(work["dur_ns"], host["duration"]),
        "step": np.append(work["step"], host["step"]),
        "event": np.append(work["event"], host["event"]),
        "launch": np.append(work["launch_event"], none),
        "part": np.append(work["collective"], none),
    }
    name = np.append(names, np.full(len(none), len(texts)))
    axis_code = np.append(axis[0], none)
    order = sorted_within(columns["lane"], columns["start"])
    sorted_columns = {key: np.asarray(value, np.int64).take(order) for key, value in columns.items()}
    return RankNodes(
        rank,
        name=(name[order], [*texts, HOST_LANE]),
        axis=(axis_code[order], axis[1]),
        on_device=on_device,
        lanes=int(columns["lane"].max(initial=-1)) + 1,
        **sorted_columns,
    )


def _lanes(work: Columns, kind: Ints) -> Ints:
    """Give lanes numbers: threads that compute are one (they take turns), posted sends and receives one each."""
    merged = {text: COMPUTING_LANE if text.split(" ")[0] == COMPUTING_LANE else text for text in work.codes("lane")[1]}
    names = sorted(set(merged.values()))
    lane = work.by_text("lane", lambda text: names.index(merged[text]), missing=0)
    is_posted = work.satisfies("lane", lambda text: "p2p" in text) & (kind == NodeKind.COMMUNICATION)
    lane[is_posted] = len(names) + np.arange(int(is_posted.sum()))
    return lane


def _host_calls(launches: Columns, work: Columns) -> dict[str, Ints]:
    """Give the host's calls that start device work or wait for it; one that waits also comes back.

    Its second node is a `RETURN`, or `ADMITTED` for a launch that stood before a full queue. A thread that never starts
    device work (NCCL's watchdog, a loader that pins memory) is not the host: what it waits for holds nothing up.
    """
    starts_work = launches["kernels"] > 0
    thread = launches.codes("thread")[0]
    # By thread: whether it starts device work. The last entry stands for -1, calls whose thread is unknown.
    is_host = np.zeros(int(thread.max(initial=-1)) + 2, dtype=bool)
    is_host[thread[starts_work]] = True
    waits = launches.matches("kind", "sync") | launches["blocking"] | _outlasts_copy(launches, work)
    waits &= is_host[thread]
    queued = waited_for_room(launches, work) & ~waits
    rows = np.flatnonzero(waits | starts_work)
    waits, queued = waits[rows], queued[rows]
    event, start, length, step = (launches[name][rows] for name in ("event", "start_ns", "dur_ns", "step"))
    zeros = np.zeros(len(rows), np.int64)
    # A call that waits takes no time itself: its return ends when what it waited for has ended. One that waited for
    # room in the queue takes what a launch usually takes, before it waits.
    usual = usual_launch_ns(length[~waits & ~queued])
    own = np.where(waits, 0, np.where(queued, np.minimum(usual, length), length))
    call = {"event": event, "start": start, "duration": own, "kind": zeros + int(NodeKind.HOST), "step": step}
    return_kind = np.where(queued, int(NodeKind.ADMITTED), int(NodeKind.RETURN))
    back = {"event": event, "start": start + length, "duration": zeros, "kind": return_kind, "step": step}
    comes_back = waits | queued
    return {column: np.append(values, back[column][comes_back]) for column, values in call.items()}


def _outlasts_copy(launches: Columns, work: Columns) -> Flags:
    """Mark copies during whose call the copy itself ended: memory that is not pinned makes an async call wait."""
    # By event number of a call: when the work that it launched ended.
    size = int(max(launches["event"].max(initial=-1), work["launch_event"].max(initial=-1))) + 2
    work_end = np.full(size, _ENDLESS)
    is_launched = work["launch_event"] >= 0
    work_end[work["launch_event"][is_launched]] = (work["start_ns"] + work["dur_ns"])[is_launched]
    call_end = launches["start_ns"] + launches["dur_ns"]
    return np.asarray(launches.matches("kind", "memcpy") & (work_end[launches["event"]] <= call_end))


_DRIFT_NS, _DRIFT_SHARE = 1_000, 1_000
"""What is missing counts as drift up to a microsecond and a thousandth of the wait: ten times any clock's drift."""


def graph_of(tables: TableSet) -> Graph:
    """Build the graph of a run, once."""
    return tables.memo("whatif graph", lambda: with_asked_posts(_build(tables)))


def _build(tables: TableSet) -> Graph:
    """Put the ranks' nodes behind each other, all on the common clock."""
    clocks = clock.of(tables)
    ranks = [nodes_of(tables, rank) for rank in tables.ranks]
    start_of_rank = [clocks.align(nodes.rank, nodes.start) for nodes in ranks]
    end_of_rank = [clocks.align(nodes.rank, nodes.end) for nodes in ranks]
    waits, dropped = [], 0
    for own, *moments in zip(ranks, start_of_rank, end_of_rank, strict=True):
        of_rank, dropped_of_rank = _on_one_clock(own, waits_of(tables, own), *moments)
        waits.append(of_rank)
        dropped += dropped_of_rank
    # Where each rank's nodes and lanes begin among those of all.
    first_node = np.cumsum([0, *(len(own.lane) for own in ranks)]).tolist()
    first_lane = np.cumsum([0, *(own.lanes for own in ranks)]).tolist()
    start, end = np.concatenate(start_of_rank), np.concatenate(end_of_rank)
    name, names = stacked_codes(own.name for own in ranks)
    axis, axes = stacked_codes(own.axis for own in ranks)
    nodes = Nodes(
        rank=np.repeat([own.rank for own in ranks], np.diff(first_node)),
        lane=np.concatenate([own.lane + low for own, low in zip(ranks, first_lane[:-1], strict=True)]),
        kind=np.concatenate([own.kind for own in ranks]),
        start=start,
        duration=end - start,
        step=np.concatenate([own.step for own in ranks]),
        axis=axis,
        name=name,
        call=_calls(tables, ranks, first_node[-1]),
        event=np.concatenate([own.event for own in ranks]),
    )
    edges = Edges(
        source=np.concatenate([of_rank.source + low for of_rank, low in zip(waits, first_node[:-1], strict=True)]),
        at_end=np.concatenate([of_rank.at_end for of_rank in waits]),
        target=np.concatenate([of_rank.target + low for of_rank, low in zip(waits, first_node[:-1], strict=True)]),
        lag=np.concatenate([of_rank.lag for of_rank in waits]),
        kind=np.concatenate([of_rank.kind for of_rank in waits]),
    )
    transfer, tied = _transfers(nodes)
    gap = np.concatenate([of_rank.gap for of_rank in waits])
    earliest = np.concatenate([of_rank.earliest for of_rank in waits])
    return Graph(nodes, gap, earliest, edges, nodes.duration, transfer, tied, tuple(axes), tuple(names), dropped)


def _on_one_clock(nodes: RankNodes, waits: RankWaits, start: Ints, end: Ints) -> tuple[RankWaits, int]:
    """Give one rank's edges by target, on the common clock, with its gaps: a replay of them gives what was measured.

    Edges that contradict the measured order are dropped, and counted.
    """
    arrived = np.where(waits.at_end, end[waits.source], start[waits.source])
    good = arrived + np.minimum(waits.lag, 0) <= start[waits.target]
    order = sorted_by(waits.target, np.flatnonzero(good))
    source, target, kind, arrived = (column[order] for column in (waits.source, waits.target, waits.kind, arrived))
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
    (start, end), (target, source_over, lag) = moments, edges
    # By node: the time since the lane's node before it ended, of which `gap` is kept as think time.
    since_lane = np.where(first, 0, start - np.roll(end, 1))
    gap = np.where(first, 0, np.minimum(gap, since_lane))
    lane_bound = np.where(first, earliest, start - since_lane + gap)
    arrived = source_over + lag
    bound = lane_bound.copy()
    np.maximum.at(bound, target, arrived)
    # Nodes that a replay would begin too early: what is missing goes to the edge that came last, or to think time.
    is_short, is_by_edge = bound < start, bound > lane_bound
    missing = np.where(is_short & is_by_edge, start - bound, 0)
    is_drift = (missing > 0) & (missing <= _DRIFT_NS + since_lane // _DRIFT_SHARE)
    came_last = is_drift[target] & (arrived == bound[target])
    lag = lag + np.where(came_last, missing[target], 0)
    is_short &= ~is_drift
    return lag, np.where(is_short & ~first, since_lane, gap), np.where(is_short & first, start, earliest)


def _calls(tables: TableSet, ranks: list[RankNodes], count: int) -> Ints:
    """Give each node the number of its call, counted from 0; -1 unless at least two members of a call were read."""
    call = np.full(count, -1, np.int64)
    matched = calls.of(tables)
    has_several = matched.parts.of_each_call() > 1
    low = 0
    for nodes in ranks:
        parts = matched.parts.of(nodes.rank, "call", "part")
        ties = has_several[parts["call"]]
        # By part of this rank: its call, -1 for none; the last entry stands for nodes that are no part (-1).
        size = max(int(nodes.part.max(initial=-1)), int(parts["part"].max(initial=-1))) + 2
        call_of_part = np.full(size, -1, np.int64)
        call_of_part[parts["part"][ties]] = parts["call"][ties]
        call[low : low + len(nodes.lane)] = call_of_part[nodes.part]
        low += len(nodes.lane)
    is_member = call >= 0
    call[is_member] = numbered(call[is_member])[1]
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
