"""Inputs of charts: plain columns in the units of the metrics; no Bokeh here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Floats, Ints


@dataclass(frozen=True, slots=True)
class Part:
    """One part of each row's whole; `role` picks its colour (compute, comm:tp, memcpy, idle:bubble, ...)."""

    label: str
    role: str
    values_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BreakdownRows:
    """Where the step goes, a row each (ranks, steps, runs), top row first."""

    labels: tuple[str, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One value for each rank and step, set against the median over ranks of its step; NaN where unknown."""

    what: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    values_ns: Floats
    """Ranks by steps."""


@dataclass(frozen=True, slots=True)
class AxisCommunication:
    """Communication of each axis: exposed, contended (attributed to another axis) and hidden under compute."""

    axes: tuple[str, ...]
    exposed_ns: tuple[float, ...]
    contended_ns: tuple[float, ...]
    hidden_ns: tuple[float, ...]


ACTION_NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""Kinds of pipeline actions, in the order of legends."""


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Pipeline actions as they ran; times count from the schedule's first action."""

    rows: tuple[str, ...]
    """Row names, first stage on top."""
    row: Ints
    start_ns: Ints
    end_ns: Ints
    kind: tuple[str, ...]
    stage: Ints
    micro_batch: Ints
    until_ns: int = 0
    """Where the drawing ends at the earliest: charts to be compared share one scale."""
    label_characters: int = 0
    """What the rows' labels are given room for at least: charts to be compared share one margin."""


@dataclass(frozen=True, slots=True)
class BandwidthPoints:
    """Bus bandwidth of calls over their size; `peak` (bytes/s) is the link's where it is known, else NaN."""

    bytes: Floats
    busbw: Floats
    axis: tuple[str, ...]
    op: tuple[str, ...]
    peak: float
    peak_label: str


@dataclass(frozen=True, slots=True)
class RooflinePoints:
    """Ops by arithmetic intensity (FLOP/byte) and achieved rate (FLOP/s); the roof is the device's."""

    label: tuple[str, ...]
    intensity: Floats
    rate: Floats
    share: Floats
    """Each op's share of device time, 0..1."""
    peak_flops: float
    peak_bandwidth: float
    device: str


@dataclass(frozen=True, slots=True)
class TimelineSlices:
    """What every rank did when: slices on rows, times from the first one on aligned clocks.

    Slices come at several levels of detail, coarse ones first; a viewer shows the finest whose visible part is small
    enough. `level_start` has one more entry than there are levels.
    """

    rows: tuple[str, ...]
    row: Ints
    start_ns: Ints
    end_ns: Ints
    role: Ints
    """Index into `roles`."""
    name: Ints
    """Index into `names`."""
    roles: tuple[str, ...]
    names: tuple[str, ...]
    level_start: tuple[int, ...]
    until_ns: int = 0
    """Where the drawing ends at the earliest: charts to be compared share one scale."""
    frame_ns: tuple[int, int] | None = None
    """A range to frame over all rows."""
    label_characters: int = 0
    """What the rows' labels are given room for at least: charts to be compared share one margin."""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How one length becomes another: from the first, over what each change takes or adds, to the last."""

    first: str
    first_ns: float
    changes: tuple[str, ...]
    delta_ns: tuple[float, ...]
    last: str


@dataclass(frozen=True, slots=True)
class PeerMatrix:
    """Bytes that went from rank to rank; 0 where nothing did."""

    ranks: tuple[int, ...]
    bytes: Floats
    """Sources by targets."""
    transfers: Ints
    """Number of transfers, -1 where it is not known."""


class Ground(StrEnum):
    """What colours are set against."""

    MEDIAN = "median"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class RankGrid:
    """A value of each rank at its place on the mesh, set against the median or against nothing; NaN where unknown."""

    what: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    rank: Ints
    """Rows by columns; -1 where there is no rank."""
    values_ns: Floats
    ground: Ground = Ground.MEDIAN


@dataclass(frozen=True, slots=True)
class RankBars:
    """One amount for each rank, expert, ..., and what an even share of its group would be; times in nanoseconds.

    `even` is empty where an even share means nothing, as for ops. `apart` are the labels of bars that stand out.
    """

    what: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    even: tuple[float, ...]
    role: str
    is_time: bool = False
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanPoints:
    """Plans that fit: what each gives and needs; `room_bytes` is what a plan may fill, infinite when not known.

    `recorded` is the place of the configuration that ran, as it is predicted; -1 where it is not among them. `named` is
    the place of the plan whose label is written beside it.
    """

    label: tuple[str, ...]
    tokens_per_second: Floats
    memory_bytes: Floats
    mfu: Floats
    front: Flags
    room_bytes: float
    recorded: int = -1
    named: int = 0


@dataclass(frozen=True, slots=True)
class PlanGrid:
    """One figure for each pair of degrees, NaN where nothing fits; `texts` and `labels` row by row."""

    what: str
    across: str
    down: str
    columns: tuple[int, ...]
    rows: tuple[int | str, ...]
    values: Floats
    texts: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of each row, part by part, and how much may be filled (infinite when not known)."""

    labels: tuple[str, ...]
    parts: tuple[tuple[str, tuple[float, ...]], ...]
    room_bytes: float


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One rank's memory after each allocator event; times count from its first."""

    label: str
    time_ns: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints


@dataclass(frozen=True, slots=True)
class MemoryLines:
    """Memory over time, a line a rank, and levels to hold them against, such as the device's capacity."""

    lines: tuple[MemoryLine, ...]
    levels: tuple[tuple[str, float], ...] = ()
    """Name and bytes of each level."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """How far the host of one rank ran ahead: for each launch its time, from the first, and the lead of its work."""

    label: str
    time_ns: Ints
    lead_ns: Ints


@dataclass(frozen=True, slots=True)
class LaunchLines:
    """The lead of launches over time, a line a rank."""

    lines: tuple[LaunchLine, ...]


ChartInput = (
    BreakdownRows
    | HeatMap
    | AxisCommunication
    | PipelineSchedule
    | BandwidthPoints
    | RooflinePoints
    | TimelineSlices
    | Waterfall
    | PeerMatrix
    | RankGrid
    | RankBars
    | PlanPoints
    | PlanGrid
    | MemoryParts
    | MemoryLines
    | LaunchLines
)
