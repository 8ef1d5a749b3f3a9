"""Inputs of charts: plain columns in the units of the metrics; no Bokeh here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.model.metric import Unit


@dataclass(frozen=True, slots=True)
class Part:
    """One part of each row; `role` selects its color (compute, comm:tp, memcpy, idle:bubble, ...)."""

    label: str
    role: str
    values_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BreakdownRows:
    """Where the step goes, one row per rank, step or run, top row first."""

    labels: tuple[str, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One value per rank and step, compared with the median of its step over ranks; NaN if unknown."""

    quantity: str
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
    """Pipeline actions as they ran; times count from the first action."""

    rows: tuple[str, ...]
    """Row names, first stage on top."""
    row: Ints
    start_ns: Ints
    end_ns: Ints
    kind: tuple[str, ...]
    stage: Ints
    micro_batch: Ints
    until_ns: int = 0
    """Minimum end of the drawing: charts to be compared share one scale."""
    label_characters: int = 0
    """Minimum width of row labels: charts to be compared share one margin."""


@dataclass(frozen=True, slots=True)
class BandwidthPoints:
    """Bus bandwidth of calls over their size; `peak` (bytes/s) is that of the link, or NaN."""

    bytes: Floats
    busbw: Floats
    axis: tuple[str, ...]
    op: tuple[str, ...]
    peak: float
    peak_label: str


@dataclass(frozen=True, slots=True)
class RooflinePoints:
    """Ops by arithmetic intensity (FLOP/byte) and achieved rate (FLOP/s), with the device's roofline."""

    label: tuple[str, ...]
    intensity: Floats
    rate: Floats
    share: Floats
    """Share of device time of each op, 0..1."""
    peak_flops: float
    peak_bandwidth: float
    device: str


@dataclass(frozen=True, slots=True)
class TimelineSlices:
    """What every rank did when: slices on rows, times from the first one on aligned clocks.

    Slices have several levels of detail, coarse ones first; a viewer shows the finest one whose visible part is small
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
    """Minimum end of the drawing: charts to be compared share one scale."""
    frame_ns: tuple[int, int] | None = None
    """A time range to frame over all rows."""
    label_characters: int = 0
    """Minimum width of row labels: charts to be compared share one margin."""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How one duration becomes another: the first, each change, and the last."""

    first: str
    first_ns: float
    changes: tuple[str, ...]
    delta_ns: tuple[float, ...]
    last: str


@dataclass(frozen=True, slots=True)
class PeerMatrix:
    """Bytes from rank to rank; 0 without traffic."""

    ranks: tuple[int, ...]
    bytes: Floats
    """Sources by targets."""
    transfers: Ints
    """Number of transfers, -1 if unknown."""


class Ground(StrEnum):
    """Reference of a color scale."""

    MEDIAN = "median"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class RankGrid:
    """One value per rank at its place in the mesh, compared with the median or with zero; NaN if unknown."""

    quantity: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    rank: Ints
    """Rows by columns; -1 without a rank."""
    values_ns: Floats
    ground: Ground = Ground.MEDIAN


@dataclass(frozen=True, slots=True)
class RankBars:
    """One amount per rank, expert, ..., and the equal share of its group, in `unit`.

    `even` is empty if an equal share has no meaning, as for ops. `apart` lists the labels of outliers. `texts` are
    written next to the bars.
    """

    quantity: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    even: tuple[float, ...]
    role: str
    unit: Unit = Unit.COUNT
    apart: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanPoints:
    """Plans that fit: speed and memory of each; `room_bytes` is the memory limit, infinite if unknown.

    `recorded` is the index of the recorded configuration, or -1. `labeled` is the index of the plan with a label.
    """

    label: tuple[str, ...]
    tokens_per_second: Floats
    memory_bytes: Floats
    mfu: Floats
    front: Flags
    room_bytes: float
    recorded: int = -1
    labeled: int = 0


@dataclass(frozen=True, slots=True)
class PlanGrid:
    """One figure per pair of degrees, NaN if nothing fits; `texts` and `labels` row by row."""

    quantity: str
    across: str
    down: str
    columns: tuple[int, ...]
    rows: tuple[int | str, ...]
    values: Floats
    texts: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Label, role and bytes per row of each part, and the memory limit (infinite if unknown)."""

    labels: tuple[str, ...]
    parts: tuple[tuple[str, str, tuple[float, ...]], ...]
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
    """Memory over time, one line per rank, and reference levels such as the device's capacity."""

    lines: tuple[MemoryLine, ...]
    levels: tuple[tuple[str, float], ...] = ()
    """Name and bytes of each level."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """Launches of one rank: time of each from the first, and the time until its work started."""

    label: str
    time_ns: Ints
    lead_ns: Ints


@dataclass(frozen=True, slots=True)
class LaunchLines:
    """Time from launch to start of work, one line per rank."""

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
