"""Which nodes has one rank? Its device's activities lane by lane, and the host's calls where the trace has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lookup import lookup
from usp_prof.columns.order import sorted_within
from usp_prof.replay.graph import NodeKind

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
