"""Replay graph of a run: activities on the lanes of every rank and their dependencies, as arrays.

A node is an activity: device work, a part of a collective call, or a host call. A node starts when the previous node of
its lane has ended (plus `gap`, the think time between them) and all of its edges are satisfied. It ends `duration`
later. Members of a call are tied: all of them end `transfer` after the last one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, rows_by_code

T = TypeVar("T")
V = TypeVar("V", bound=np.generic)

NEVER = np.iinfo(np.int64).min // 4
"""Earlier than every timestamp: a bound without effect."""
ROUNDING_NS = 1_000
"""Timestamps in traces are microseconds: work may seem to start this much before the end that it waited for."""
LEFT_BY_CLOCKS_NS = 100_000
"""Uncertainty of the host-device offset: device timestamps of one rank scatter by up to 80 us on V100 hosts."""


class NodeKind(IntEnum):
    """Kind of a node."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    HOST = 3
    RETURN = 4
    """Return of a host call that waits for the device."""
    ADMITTED = 5
    """Return of a launch that waited for room in its stream's queue."""


HOST_KINDS = (NodeKind.HOST, NodeKind.RETURN, NodeKind.ADMITTED)
"""Kinds of host nodes on ranks with a device: calls and their returns."""


class EdgeKind(IntEnum):
    """Reason why one node waits for another."""

    LAUNCH = 0
    ISSUE = 1
    """A communication is posted after this compute (CPU) or waits for it on the device."""
    WAIT = 2
    """Work waits for a communication or for another stream."""
    SYNC = 3
    """The host waits for the device."""
    BOUNDARY = 4
    """The next step starts after all work of the previous one."""
    QUEUE = 5
    """A launch waits until the device has taken earlier work from a full queue."""
    REMOVED = 6
    """An edit removed this edge. It stays, without effect, so that the replay plan of the recorded graph still fits."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes, sorted by lane and start; times are as measured, on the common clock."""

    rank: Ints
    lane: Ints
    kind: Ints
    start: Ints
    duration: Ints
    step: Ints
    axis: Ints
    name: Ints
    call: Ints
    """Number of the call that this part is tied to; -1 for all other nodes."""
    event: Ints | None = None
    """Event number of each node in its rank's trace; -1 for nodes added by edits. `None` in graphs without a trace."""

    _end: list[Ints] = field(default_factory=list, init=False, repr=False)
    _of_rank: dict[int, Ints] = field(default_factory=dict, init=False, repr=False)
    _memo: dict[object, object] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def end(self) -> Ints:
        """Measured ends."""
        if not self._end:
            self._end.append(self.start + self.duration)
        return self._end[0]

    def of_rank(self, rank: int) -> Ints:
        """Return the rows of one rank, in order."""
        if not self._of_rank:
            self._of_rank.update(rows_by_code(self.rank))
        return self._of_rank.get(rank, self.rank[:0])

    @property
    def of_host(self) -> Flags:
        """Marks of host nodes on ranks with a device: calls and their returns."""
        return self.memo("of host", lambda: np.isin(self.kind, HOST_KINDS))

    @property
    def first_of_lane(self) -> Flags:
        """Marks of the first node of each lane."""
        return self.memo("first of lane", lambda: first_of_run(self.lane))

    def of_ranks_with(self, marked: Flags) -> Flags:
        """Mark all nodes of the ranks that have at least one marked node."""
        is_with = np.zeros(int(self.rank.max(initial=0)) + 1, dtype=bool)
        is_with[self.rank[marked]] = True
        return np.asarray(is_with[self.rank])

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Return a value derived from these nodes, memoized under `key`."""
        return _once(self._memo, key, build)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Dependencies other than lane order, sorted by `target`: the start or end of `source`, plus `lag`."""

    source: Ints
    at_end: Flags
    target: Ints
    lag: Ints
    kind: Ints

    def take(self, rows: Ints | Flags) -> Edges:
        """Return the given edges only."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Edges(
            self.source.take(rows),
            self.at_end.take(rows),
            self.target.take(rows),
            self.lag.take(rows),
            self.kind.take(rows),
        )

    def without(self, rows: Flags) -> Edges:
        """Return the edges with the marked ones removed, at the same indexes."""
        lag, kind = np.where(rows, NEVER, self.lag), np.where(rows, int(EdgeKind.REMOVED), self.kind)
        return Edges(self.source, self.at_end, self.target, lag, kind)


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Nodes that end `transfer` after the last start of given nodes instead of all members of one call.

    These are kernels that run several sends and receives, and the other sides of those. In a ring, each kernel meets
    only its two neighbors. Pairs are sorted by `node`, which meets itself too.
    """

    node: Ints
    other: Ints


NO_MEETINGS = Meetings(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A run that can be replayed. Edits return a graph with different numbers and the same nodes."""

    nodes: Nodes
    gap: Ints
    """Think time since the previous node of the lane; negative if activities of the lane overlap."""
    earliest: Ints
    """Measured start of nodes without other bounds (first of a lane); `NEVER` for all others."""
    edges: Edges
    duration: Ints
    transfer: Ints
    """For tied parts: time from the start of the last member that it meets to the end of this part."""
    tied: Flags
    axes: tuple[str, ...]
    names: tuple[str, ...]
    met: Meetings = NO_MEETINGS
    added: int = 0
    """Number of nodes at the end that edits added; no trace has them."""

    _memo: dict[object, object] = field(default_factory=dict, init=False, repr=False)

    @property
    def measured(self) -> Flags:
        """Marks of the nodes that come from the trace."""
        return np.arange(len(self.nodes)) < len(self.nodes) - self.added

    def spread(self, values: NDArray[V], *, missing: float) -> NDArray[V]:
        """Return the values of measured nodes, extended with `missing` for nodes that edits added."""
        return np.append(values, np.full(self.added, missing, dtype=values.dtype))

    def waits_as(self, other: Graph) -> bool:
        """Return whether the same nodes wait for each other as in `other`, so that one plan works for both."""
        edges, other_edges = self.edges, other.edges
        return self.nodes is other.nodes and all(
            array is other_array or np.array_equal(array, other_array)
            for array, other_array in (
                (edges.source, other_edges.source),
                (edges.target, other_edges.target),
                (edges.at_end, other_edges.at_end),
                (self.tied, other.tied),
                (self.met.node, other.met.node),
                (self.met.other, other.met.other),
            )
        )

    def with_changes(self, **changes: Ints | Flags | Edges | Nodes | int | bool | tuple[str, ...]) -> Graph:
        """Return the graph with the given fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Return a value derived from this graph, memoized under `key`."""
        return _once(self._memo, key, build)

    def on_axis(self, axis: str) -> Flags:
        """Mark the communication of one axis, or of all axes if `axis` is empty."""
        talks = self.nodes.kind == NodeKind.COMMUNICATION
        if not axis:
            return np.asarray(talks)
        axis_code = self.axes.index(axis) if axis in self.axes else -2
        return np.asarray(talks & (self.nodes.axis == axis_code))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of each node in a replay."""

    start: Ints
    end: Ints


def events_of(graph: Graph) -> Ints:
    """Return each node's event number in its rank's trace; -1 for nodes that are not in a trace."""
    event = graph.nodes.event
    return np.full(len(graph.nodes), -1, np.int64) if event is None else event


def _once(memo: dict[object, object], key: object, build: Callable[[], T]) -> T:
    if key not in memo:
        built = memo[key] = build()
        if isinstance(built, np.ndarray):
            built.setflags(write=False)
    return memo[key]  # type: ignore[return-value] # the key names the type
