"""Kernels: what compute consists of, and how close each op comes to the device's limits.

For every op with a formula: FLOP and bytes from its shapes, the rate over its kernels, the roofline's bound at that
intensity, and the efficiency relative to it. Ops without a formula are listed with their share of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import nan

from usp_prof.analyses.measures import device_bounds
from usp_prof.analyses.measures.device_bounds import Roof
from usp_prof.analyses.measures.kernel_tally import PACED, SMALL_NS, KernelStat, OpStat, of_rank, sum_up
from usp_prof.analyses.result import DataFrame, Listing, Result, columns_of, frame, in_order
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import shares
from usp_prof.tables.table_set import TableSet

KERNEL_EFFICIENCY = Metric(
    "kernel_efficiency", Unit.FRACTION, Better.HIGHER, "Kernel efficiency",
    "Roofline time divided by measured time, for ops with a formula; by step or by op family.",
    ("step", "family"),
)  # fmt: skip
FORMULA_FRACTION = Metric(
    "formula_fraction", Unit.FRACTION, Better.NEITHER, "Covered by formulas",
    "Share of compute time in ops that have a formula and recorded shapes, or that compute nothing. Paced "
    "waits are excluded.",
)  # fmt: skip
MATRIX_CORE_FRACTION = Metric(
    "matrix_core_fraction", Unit.FRACTION, Better.HIGHER, "On matrix cores",
    "Share of the time of matrix products, attention and convolutions that runs on matrix cores, in total and "
    "by precision. Only kernels whose name or data type shows it count; omitted if they are less than 90%.",
    ("precision",),
)  # fmt: skip
UNKNOWN_CORE_FRACTION = Metric(
    "unknown_core_fraction", Unit.FRACTION, Better.NEITHER, "Matrix core use unknown",
    "Share of the time of matrix products, attention and convolutions in kernels that do not show whether they"
    " use matrix cores.",
    ("precision",),
)  # fmt: skip
SMALL_KERNEL_FRACTION = Metric(
    "small_kernel_fraction", Unit.FRACTION, Better.LOWER, "Small kernels",
    f"Share of compute time in kernels shorter than {SMALL_NS // 1000} us.",
)  # fmt: skip
ACHIEVED_FLOP_RATE = Metric(
    "achieved_flop_rate", Unit.FLOP_PER_SECOND, Better.HIGHER, "Rate in kernels",
    "FLOPs of ops with a formula divided by the time of their kernels; by op family.",
    ("family",),
)  # fmt: skip
METRICS = (
    KERNEL_EFFICIENCY,
    FORMULA_FRACTION,
    MATRIX_CORE_FRACTION,
    UNKNOWN_CORE_FRACTION,
    SMALL_KERNEL_FRACTION,
    ACHIEVED_FLOP_RATE,
)
_NOTABLE = 0.001
_MOST_UNKNOWN = 0.1
"""If the share of kernels with unknown cores exceeds this, the share on matrix cores is unknown too."""


@dataclass(frozen=True, slots=True)
class KernelsResult(Result):
    """Ops and kernels by time, over all ranks and steps, and the roofline that they are compared with."""

    ops: tuple[OpStat, ...]
    kernels: tuple[KernelStat, ...]
    total_ns: int
    roof: Roof
    on_gpu: bool
    notes: tuple[HealthRow, ...] = ()
    efficiency_by_step: Mapping[int, float] = field(default_factory=dict)

    @property
    def covered_ns(self) -> int:
        """Compute time of ops with a formula."""
        return sum(op.time_ns for op in self.ops if op.family)

    @property
    def paced_ns(self) -> int:
        """Time of timed waits that replace compute; it belongs to no op."""
        return sum(op.time_ns for op in self.ops if op.name == PACED)

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        if not self.total_ns:
            return Values()
        families = sorted({op.family for op in self.ops if op.family})
        real = self.total_ns - self.paced_ns
        values = [Value(FORMULA_FRACTION, self.covered_ns / real)] if real else []
        values += [Value(KERNEL_EFFICIENCY, share, {"step": step}) for step, share in self.efficiency_by_step.items()]
        for family in ("", *families):
            of_family = [op for op in self.ops if op.family and family in {"", op.family}]
            dims: dict[str, int | str] = {"family": family} if family else {}
            bounded = [op for op in of_family if op.is_bounded]
            if bounded:
                ideal = sum(op.ideal_ns for op in bounded)
                values.append(Value(KERNEL_EFFICIENCY, ideal / sum(op.time_ns for op in bounded), dims))
            counted = [op for op in of_family if op.flop and (op.is_bounded or not op.ideal_ns)]
            # Ops whose kernels take no time have FLOP but no rate.
            if counted_ns := sum(op.time_ns for op in counted):
                values.append(Value(ACHIEVED_FLOP_RATE, sum(op.flop for op in counted) / counted_ns * 1e9, dims))
        if self.on_gpu:
            values += self._kernel_values()
        return in_order(values)

    def _kernel_values(self) -> list[Value]:
        small = sum(kernel.small_ns for kernel in self.kernels)
        values = [Value(SMALL_KERNEL_FRACTION, small / self.total_ns)]
        matrix = [op for op in self.ops if op.flop]
        for kind in ("", *sorted({op.precision for op in matrix if op.precision})):
            of_kind = [op for op in matrix if kind in {"", op.precision}]
            total_ns = sum(op.time_ns for op in of_kind)
            unknown_ns = sum(op.unknown_core_ns for op in of_kind)
            dims: dict[str, int | str] = {"precision": kind} if kind else {}
            if unknown_ns:
                values.append(Value(UNKNOWN_CORE_FRACTION, unknown_ns / total_ns, dims))
            if total_ns and unknown_ns <= _MOST_UNKNOWN * total_ns:
                matrix_core_ns = sum(op.matrix_core_ns for op in of_kind)
                values.append(Value(MATRIX_CORE_FRACTION, matrix_core_ns / (total_ns - unknown_ns), dims))
        return values

    def top(self) -> DataFrame:
        """Return one row per kernel name (on CPUs: per op), longest first, with statistics over its calls."""
        return frame(self.top_listing())

    def listing(self) -> Listing:
        """Return one row per op and shape, longest first. Ops without a formula have no shapes."""
        rows = self.ops
        return {
            **columns_of(rows, op="name", shapes="dims"),
            **columns_of(rows, "family", "precision", "calls", "time_ns"),
            "mean_ns": [op.time_ns / op.calls if op.calls else nan for op in rows],
            "share": [self._share(op.time_ns) for op in rows],
            "total_flop": [op.flop if op.family else nan for op in rows],
            "total_bytes": [op.bytes if op.family else nan for op in rows],
            **columns_of(rows, "intensity", rate_flops="rate", bound="bound", efficiency="efficiency"),
        }

    def top_listing(self) -> Listing:
        """Return the kernels as plain columns."""
        rows = self.kernels
        return {
            **columns_of(rows, "name", "count", "total_ns"),
            "share": [self._share(kernel.total_ns) for kernel in rows],
            **columns_of(rows, "mean_ns", "std_ns", "min_ns", "max_ns"),
        }

    def _share(self, time_ns: int) -> float:
        return time_ns / self.total_ns if self.total_ns else nan


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> KernelsResult:
    """Sum up the compute of the selected ranks and steps by op and by kernel."""
    return tables.memo(("kernels", selection), lambda: _tallied(tables, selection))


def _tallied(tables: TableSet, selection: Selection) -> KernelsResult:
    bounds = device_bounds.roof(tables)
    ranks = selection.ranks_among(tables.ranks)
    tallies = shares.of_each_rank(tables, partial(of_rank, roof=bounds, selection=selection), ranks)
    kernels, ops, efficiency_by_step = sum_up(tallies)
    on_gpu = any(map(tables.ran_on_gpu, ranks))
    total = int(sum(kernel.total_ns for kernel in kernels))
    notes = [*bounds.notes, *_shape_notes(tables, ranks, ops, total)]
    notes += [*_peak_notes(ops, bounds), *_beaten_notes(ops, total)]
    return KernelsResult(ops, kernels, total, bounds, on_gpu, tuple(sorted(notes)), efficiency_by_step)


def _shape_notes(tables: TableSet, ranks: list[int], ops: tuple[OpStat, ...], total: int) -> list[HealthRow]:
    """Return a note on what to record if no op, or too little compute time, can be counted."""
    if not total:
        return []
    shaped = any(tables.columns("ops", rank).codes("input_dims")[1] not in ([], [""]) for rank in ranks)
    if not shaped:
        detail = "no shapes were recorded, so FLOPs and efficiency are unknown; record with record_shapes=True"
        return [HealthRow("no_shapes", Severity.INFO, detail=detail)]
    unlinked = sum(op.time_ns for op in ops if not op.is_attributed)
    if unlinked > total / 10:
        detail = (
            f"{100 * unlinked / total:.0f}% of compute time belongs to no CPU op (graphs, launches before the window)"
        )
        return [HealthRow("kernels_without_op", Severity.INFO, detail=f"{detail}, so its FLOPs are unknown")]
    return []


def _peak_notes(ops: tuple[OpStat, ...], bounds: Roof) -> list[HealthRow]:
    """Return notes on precisions without a known peak, and on matrix products of unknown precision."""
    if bounds.notes:
        return []
    notes = []
    products = [op for op in ops if op.flop]
    peakless = sorted({op.precision for op in products if op.precision and not op.ideal_ns})
    if peakless:
        detail = f"the dense peak of {bounds.name} for {', '.join(peakless)} is unknown: no efficiency for these ops"
        notes.append(HealthRow("no_precision_peak", Severity.INFO, detail=detail))
    unknown = sum(op.time_ns for op in products if not op.precision and not bounds.stated)
    if unknown:
        share = 100 * unknown / sum(op.time_ns for op in products)
        detail = f"{share:.1f}% of the time in matrix products has an unknown precision (types and kernel names)"
        notes.append(HealthRow("precision_unknown", Severity.INFO, detail=f"{detail}: no efficiency for these ops"))
    return notes


def _beaten_notes(ops: tuple[OpStat, ...], total: int) -> list[HealthRow]:
    """Return a note on the share of ops that were faster than the peaks allow; these have no efficiency."""
    beaten = [op for op in ops if op.ideal_ns > 0 and not op.is_bounded]
    if not beaten or not total:
        return []
    share, worst = sum(op.time_ns for op in beaten) / total, max(beaten, key=lambda op: op.time_ns)
    if share < _NOTABLE:
        return []
    detail = (
        f"{100 * share:.1f}% of compute time is in ops faster than the peaks allow, most in {worst.name} {worst.dims}"
        ": their data was in the cache, or their shapes overstate the work; their efficiency is not shown"
    )
    return [HealthRow("bound_beaten", Severity.INFO, count=len(beaten), detail=detail)]
