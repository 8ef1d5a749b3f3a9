"""Graph of a run: activities on lanes of every rank, and what each had to wait for, as arrays.

A node is an activity: device work, a communication's part, or a call of the host. A node begins when its lane's node
before it has ended (plus `gap`, the think time kept between them) and everything that an edge names has happened; it
ends `duration` later. Members of a call are tied: all end `transfer` after the last of them began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from usp_prof.columns.rows import first_of_run, rows_by_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints


T = TypeVar("T")
V = TypeVar("V", bound=np.generic)

NEVER = np.iinfo(np.int64).min // 4
"""Earlier than everything: a bound that binds nothing."""


class NodeKind(IntEnum):
    """What a node is."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    HOST = 3
    RETURN = 4
    """A host call that waits for the device comes back."""
    ADMITTED = 5
    """A launch comes back that had to wait until its stream's queue had room."""


HOST_KINDS = (NodeKind.HOST, NodeKind.RETURN, NodeKind.ADMITTED)
"""What the host of a rank with a device does: its calls, and their coming back."""


class EdgeKind(IntEnum):
    """Why one node waits for another."""

    LAUNCH = 0
    ISSUE = 1
    """A communication is posted by the host after, or waits on the device for, this compute."""
    WAIT = 2
    """Work waits for a communication or for another stream."""
    SYNC = 3
    """The host waits for the device."""
    BOUNDARY = 4
    """The next step begins after everything of the last one."""
    QUEUE = 5
    """A launch waits until the device has taken earlier work from a full queue."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes, lane by lane and in order within each; times are measured, on the common clock."""

    rank: Ints
    lane: Ints
    kind: Ints
    start: Ints
    duration: Ints
    step: Ints
    axis: Ints
    name: Ints
    call: Ints
    """Number of the call that this part is tied to; -1 for everything else."""
    event: Ints | None = None
    """Event of its rank that each node is; -1 for what an edit put in. `None` in graphs that no trace is behind."""

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
        """Give the rows of one rank, in order."""
        if not self._of_rank:
            self._of_rank.update(rows_by_code(self.rank))
        return self._of_rank.get(rank, self.rank[:0])

    @property
    def of_host(self) -> Flags:
        """Mark what the hosts of ranks with a device do: their calls, and their coming back."""
        return self.memo("of host", lambda: np.isin(self.kind, HOST_KINDS))

    @property
    def first_of_lane(self) -> Flags:
        """Mark the nodes that have none before them on their lane."""
        return self.memo("first of lane", lambda: first_of_run(self.lane))

    def of_ranks_with(self, marked: Flags) -> Flags:
        """Mark all nodes of the ranks of which some node is marked."""
        is_with = np.zeros(int(self.rank.max(initial=0)) + 1, dtype=bool)
        is_with[self.rank[marked]] = True
        return np.asarray(is_with[self.rank])

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Work something out of these nodes once."""
        return _once(self._memo, key, build)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """What nodes wait for besides their lane, sorted by `target`: the start or end of `source`, plus `lag`."""

    source: Ints
    at_end: Flags
    target: Ints
    lag: Ints
    kind: Ints

    def take(self, rows: Ints | Flags) -> Edges:
        """Keep some of the edges."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Edges(
            self.source.take(rows),
            self.at_end.take(rows),
            self.target.take(rows),
            self.lag.take(rows),
            self.kind.take(rows),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A run that can be replayed. Edits give a graph with other numbers and the same nodes."""

    nodes: Nodes
    gap: Ints
    """Think time after the lane's node before; it may be negative where a lane's activities overlap."""
    earliest: Ints
    """Where nothing else says when a node begins (the first of a lane), the measured time; else `NEVER`."""
    edges: Edges
    duration: Ints
    transfer: Ints
    """For tied parts: from the last member's begin to this part's end."""
    tied: Flags
    axes: tuple[str, ...]
    names: tuple[str, ...]
    added: int = 0
    """Nodes at the end that no trace holds: edits put them in."""
    rewired: bool = False
    """An edit let nodes wait for what they did not wait for before."""

    _memo: dict[object, object] = field(default_factory=dict, init=False, repr=False)

    @property
    def measured(self) -> Flags:
        """Mark the nodes that the trace holds."""
        return np.arange(len(self.nodes)) < len(self.nodes) - self.added

    def spread(self, values: NDArray[V], *, missing: float) -> NDArray[V]:
        """Give what is known of each measured node for all nodes: `missing` for those that edits put in behind them."""
        return np.append(values, np.full(self.added, missing, dtype=values.dtype))

    def waits_as(self, other: Graph) -> bool:
        """Say whether nothing waits here for what it does not wait for there, so that one plan serves both."""
        return self.nodes is other.nodes and not self.rewired

    def with_changes(self, **changes: Ints | Flags | Edges | Nodes | int | bool | tuple[str, ...]) -> Graph:
        """Give the graph with other numbers."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Work something out of this graph once."""
        return _once(self._memo, key, build)

    def on_axis(self, axis: str) -> Flags:
        """Mark the communication of one axis; of all axes for the empty word."""
        talks = self.nodes.kind == NodeKind.COMMUNICATION
        if not axis:
            return np.asarray(talks)
        wanted = self.axes.index(axis) if axis in self.axes else -2
        return np.asarray(talks & (self.nodes.axis == wanted))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When each node begins and ends in a replay."""

    start: Ints
    end: Ints


def events_of(graph: Graph) -> Ints:
    """Give each node's event number in its own rank's trace; -1 for what no trace holds."""
    event = graph.nodes.event
    return np.full(len(graph.nodes), -1, np.int64) if event is None else event


def _once(memo: dict[object, object], key: object, build: Callable[[], T]) -> T:
    if key not in memo:
        built = memo[key] = build()
        if isinstance(built, np.ndarray):
            built.setflags(write=False)
    return memo[key]  # type: ignore[return-value] # the key names the type
