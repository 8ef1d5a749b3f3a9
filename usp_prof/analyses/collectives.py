"""Collectives: bandwidth, and the time spent waiting for the last participant, per axis, kind and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures.arrivals import EVERY_AXIS, Waiting, waiting_of
from usp_prof.analyses.measures.device_bounds import roof
from usp_prof.analyses.measures.exchange import Exchange, Pair, exchanges, pairs
from usp_prof.analyses.result import DataFrame, Listing, Result, fields_of, frame, in_order, spread
from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import combinations, group_codes, lookup
from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import FROM_ONE, NO_DIMS, Better, Dims, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import calls as call_table
from usp_prof.tables.matching.same_calls import matched_parts
from usp_prof.tables.table_set import TableSet

_KIND = ("axis", "collective", "size")
WAIT_TIME = Metric(
    "wait_time", Unit.NS, Better.LOWER, "Wait for the last participant",
    "Communication time in which calls wait for their last participant and no call transfers. Only calls whose"
    " participants are all known.",
    ("rank", "step", "axis"),
)  # fmt: skip
TRANSFER_TIME = Metric(
    "transfer_time", Unit.NS, Better.LOWER, "Transfer",
    "Communication time after the last participant of a call arrived. Only calls whose participants are all "
    "known.",
    ("rank", "step", "axis"),
)  # fmt: skip
ALGBW = Metric(
    "algbw", Unit.BYTES_PER_SECOND, Better.HIGHER, "Algorithm bandwidth",
    "Bytes divided by transfer time, median over calls, by axis, collective and size class (its upper bound in"
    " bytes).",
    _KIND,
)  # fmt: skip
BUSBW = Metric(
    "busbw", Unit.BYTES_PER_SECOND, Better.HIGHER, "Bus bandwidth",
    "Algorithm bandwidth times the nccl-tests factor: the traffic of each link. Median over calls.",
    _KIND,
)  # fmt: skip
LINK_FRACTION = Metric(
    "link_fraction", Unit.FRACTION, Better.HIGHER, "Share of the link's peak",
    "Bus bandwidth divided by the peak of the device's link inside a node. Only calls within one node.",
    _KIND,
    inputs="the calls' bytes or times, or the peak of another link than they ran on",
)  # fmt: skip
SKEW = Metric(
    "arrival_skew", Unit.NS, Better.LOWER, "Arrival skew",
    "Time from the first to the last arrival of a call, median over calls.",
    ("axis", "collective"),
)  # fmt: skip
CALLS = Metric(
    "collective_calls", Unit.COUNT, Better.NEITHER, "Calls",
    "Number of calls, by axis, collective and size class.",
    _KIND,
)  # fmt: skip
VOLUME = Metric(
    "collective_bytes", Unit.BYTES, Better.NEITHER, "Bytes",
    "Sum of the bytes of all calls.",
    _KIND,
)  # fmt: skip
IMBALANCE = Metric(
    "all_to_all_imbalance", Unit.RATIO, Better.LOWER, "All-to-all imbalance",
    "Most bytes received by one participant of an all-to-all divided by the mean, averaged over calls.",
    ("axis",),
    FROM_ONE,
)  # fmt: skip
METRICS = (WAIT_TIME, TRANSFER_TIME, ALGBW, BUSBW, LINK_FRACTION, SKEW, CALLS, VOLUME, IMBALANCE)


@dataclass(frozen=True, slots=True)
class Kind:
    """Calls of one axis, operation and size class (`size_bytes` is its upper bound). Unknown sizes are -1."""

    axis: str
    op: str
    size_bytes: int
    calls: int
    complete: int
    inter_node: int
    bytes: int
    transfer_ns: float
    wait_ns: float
    skew_ns: float
    algbw: float
    busbw: float
    link_fraction: float


_TEXTS = ("axis", "op", "group")


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """All complete calls of known size, for a chart of bandwidth over size."""

    bytes: Ints
    transfer_ns: Ints
    busbw: Floats
    inter_node: Flags
    texts: Mapping[str, tuple[NDArray[Any], list[str]]]
    """Codes and their texts, for `axis`, `op` and `group`."""

    def matches(self, name: str, text: str) -> Flags:
        """Return which calls have the given axis, operation or group."""
        codes, texts = self.texts[name]
        return lookup([other == text for other in texts], codes, missing=False)


@dataclass(frozen=True, slots=True, eq=False)
class CollectivesResult(Result):
    """Bandwidth and waiting of the selected calls."""

    kinds: tuple[Kind, ...]
    points: Points
    waiting: Waiting
    pairs: tuple[Pair, ...]
    exchanges: tuple[Exchange, ...]
    link_peak: float
    link_name: str
    notes: tuple[HealthRow, ...] = ()

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        values = _waiting_values(self.waiting)
        for k in self.kinds:
            dims: Dims = {"axis": k.axis, "collective": k.op, "size": k.size_bytes}
            values.append(Value(CALLS, k.calls, dims))
            if k.bytes >= 0:
                values.append(Value(VOLUME, k.bytes, dims))
            bandwidths = ((ALGBW, k.algbw), (BUSBW, k.busbw), (LINK_FRACTION, k.link_fraction))
            values += [Value(metric, figure, dims) for metric, figure in bandwidths if not np.isnan(figure)]
        for axis, op in sorted({(k.axis, k.op) for k in self.kinds}):
            dims = {"axis": axis, "collective": op}
            rows = self.points.matches("axis", axis) & self.points.matches("op", op)
            values += _bandwidth_values(self.points, rows, dims)
            skews = [(k.skew_ns, k.complete) for k in self.kinds if (k.axis, k.op) == (axis, op) and k.complete]
            if skews:
                mean = sum(skew * n for skew, n in skews) / sum(n for _, n in skews)
                values.append(Value(SKEW, mean, dims))
        values += _bandwidth_values(self.points, np.ones(len(self.points.bytes), bool), NO_DIMS)
        values += [Value(IMBALANCE, e.imbalance, {"axis": e.axis}) for e in self.exchanges]
        return in_order(values)

    def to_pandas(self) -> DataFrame:
        """Return one row per axis, operation and size class. Unknown sizes are NaN."""
        return frame(self.listing(), or_unknown=("size_bytes", "bytes"))

    def listing(self) -> Listing:
        """Return the same data as plain columns."""
        columns = fields_of(self.kinds, Kind)
        return columns | {"link_fraction": [LINK_FRACTION.if_possible(share) for share in columns["link_fraction"]]}


def bus_factor(op: str, members: int) -> float:
    """Return the nccl-tests factor from algorithm bandwidth to bus bandwidth."""
    match op:
        case "all_reduce":
            return 2 * (members - 1) / members
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (members - 1) / members
        case _:
            return 1.0


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> CollectivesResult:
    """Analyze the calls of the selected steps that have a participant among the selected ranks."""
    return tables.memo(("collectives", selection), lambda: _measured(tables, selection))


def _measured(tables: TableSet, selection: Selection) -> CollectivesResult:
    matched = call_table.match_calls(tables)
    calls = matched.columns()
    chosen = tables.selects(selection, calls["step"])
    if selection.ranks is not None:
        chosen &= matched.touching(selection.ranks)
    name, peak = _link(tables)
    chosen_calls = calls.take(chosen)
    busbw = bus_bandwidth(chosen_calls)
    usable = chosen_calls["complete"] & (chosen_calls["bytes"] > 0) & (chosen_calls["transfer_ns"] > 0)
    points = Points(
        chosen_calls["bytes"][usable],
        chosen_calls["transfer_ns"][usable],
        busbw[usable],
        chosen_calls["inter_node"][usable],
        {name: (codes[usable], texts) for name in _TEXTS for codes, texts in [chosen_calls.narrow_codes(name)]},
    )
    return CollectivesResult(
        _kinds(chosen_calls, busbw, peak),
        points,
        waiting_of(tables, selection),
        pairs(tables, chosen_calls),
        exchanges(tables, chosen_calls),
        peak,
        name,
        tuple(sorted(_notes(tables, chosen_calls))),
    )


def bus_factors(calls: Columns) -> Floats:
    """Return each call's `bus_factor`."""
    op, names = calls.codes("op")
    kinds, kind_of_call = combinations(op, calls["group_size"])
    return lookup([bus_factor(names[code], max(size, 1)) for code, size in kinds], kind_of_call, missing=1.0)


def bus_bandwidth(calls: Columns) -> Floats:
    """Return each call's bus bandwidth, or NaN if its size or transfer time is unknown."""
    is_measured = calls["complete"] & (calls["bytes"] > 0) & (calls["transfer_ns"] > 0)
    time = np.where(is_measured, calls["transfer_ns"], 1) / 1e9
    return np.where(is_measured, calls["bytes"] / time * bus_factors(calls), np.nan)


def _kinds(calls: Columns, busbw: Floats, peak: float) -> tuple[Kind, ...]:
    if not len(calls):
        return ()
    size = np.where(calls["bytes"] > 0, 2 ** np.ceil(np.log2(np.maximum(calls["bytes"], 1))).astype(np.int64), -1)
    kind = group_codes(calls.codes("axis")[0], calls.codes("op")[0], size)
    kinds = []
    for code in range(int(kind.max()) + 1):
        rows = np.flatnonzero(kind == code)
        complete = rows[calls["complete"][rows]]
        fast = complete[~np.isnan(busbw[complete])]
        inside = fast[~calls["inter_node"][fast]]
        skew = (calls["last_ns"] - calls["first_ns"])[complete]
        kinds.append(
            Kind(
                str(calls["axis"][rows[0]]),
                str(calls["op"][rows[0]]),
                int(size[rows[0]]),
                len(rows),
                len(complete),
                int(calls["inter_node"][rows].sum()),
                int(calls["bytes"][rows].sum()) if (calls["bytes"][rows] >= 0).all() else -1,
                _median(calls["transfer_ns"][complete]),
                _median(calls["wait_ns"][complete]),
                _median(skew),
                _median(calls["bytes"][fast] / np.maximum(calls["transfer_ns"][fast], 1) * 1e9),
                _median(busbw[fast]),
                _median(busbw[inside] / peak) if peak > 0 else float("nan"),
            )
        )
    return tuple(sorted(kinds, key=lambda k: (k.axis, k.op, k.size_bytes)))


def _median(figures: NDArray[Any]) -> float:
    return float(np.median(figures)) if len(figures) else float("nan")


def _waiting_values(waiting: Waiting) -> list[Value]:
    values = []
    for metric, time in ((WAIT_TIME, waiting.wait_ns), (TRANSFER_TIME, waiting.transfer_ns)):
        for axis in dict.fromkeys(waiting.axis.tolist()):
            rows, dims = waiting.axis == axis, {} if axis == EVERY_AXIS else {"axis": axis}
            values += spread(metric, waiting.rank[rows], waiting.step[rows], time[rows], **dims)
    return values


def _bandwidth_values(points: Points, rows: Flags, dims: Dims) -> list[Value]:
    if not rows.any():
        return []
    algbw = points.bytes[rows] / points.transfer_ns[rows] * 1e9
    return [Value(ALGBW, float(np.median(algbw)), dims), Value(BUSBW, float(np.median(points.busbw[rows])), dims)]


def _link(tables: TableSet) -> tuple[str, float]:
    """Return name and peak of the device's link inside a node, or an empty name and NaN if the device is unknown."""
    device = roof(tables).device
    if device is None or device.link_rate <= 0:
        return "", float("nan")
    return device.link, device.link_rate


def _notes(tables: TableSet, calls: Columns) -> list[HealthRow]:
    recorded = len(matched_parts(tables).columns)
    matched = len(call_table.match_calls(tables).parts)
    notes = []
    if recorded > matched:
        detail = "their group or peer is unknown, so they cannot be matched with the other ranks' parts"
        notes.append(HealthRow("parts_unmatched", Severity.INFO, count=recorded - matched, detail=detail))
    missing = int((~calls["complete"]).sum())
    if missing:
        detail = "participants are missing (rank not read, other window or unconnected clock), so the wait is unknown"
        notes.append(HealthRow("calls_incomplete", Severity.INFO, count=missing, detail=detail))
    sizeless = int((calls["complete"] & (calls["bytes"] <= 0)).sum())
    if sizeless:
        detail = "the trace has no sizes for these calls, so their bandwidth is unknown"
        notes.append(HealthRow("calls_without_size", Severity.INFO, count=sizeless, detail=detail))
    return notes
