"""Pictures of answers: the first chart of the report's section, or one drawn from its figures if it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from usp_prof.analyses.result import Result
from usp_prof.charts.inputs import BreakdownRows, ChartInput, Part, RankBars
from usp_prof.model.finding import Finding
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, Section, Stack
from usp_prof.report.figures import Figures, axes_in_order

if TYPE_CHECKING:
    from usp_prof.analyses.host import HostResult
    from usp_prof.analyses.kernels import KernelsResult


_MOST_BARS = 40
_MOST_KERNELS = 16


def picture(name: str, section: Section | None, result: Result, figures: Figures) -> ChartInput | None:
    """Return the picture of an answer, or None if there is nothing to draw."""
    blocks = section.blocks if section is not None else ()
    charts = [block.data for block in blocks if isinstance(block, Chart)]
    if name == "collectives" and (
        waiting := _waiting(figures)
    ):  # the section draws bandwidths, but the question is about waiting
        return waiting
    if charts:
        return charts[0]
    pictures: dict[str, Callable[[], ChartInput | None]] = {
        "stragglers": lambda: _lateness(figures),
        "kernels": lambda: _kernels(cast("KernelsResult", result)),
        "host": lambda: _host(cast("HostResult", result)),
        "mfu": lambda: _utilization(figures),
    }
    return pictures[name]() if name in pictures else stack_of(blocks)


def stack_of(blocks: Iterable[object]) -> BreakdownRows | None:
    """Return the first stack as one bar."""
    stack = next((block for block in blocks if isinstance(block, Stack)), None)
    if stack is None:
        return None
    parts = tuple(Part(part.label, part.role, (float(part.value),)) for part in stack.visible_parts)
    return BreakdownRows(("",), parts)


def gains(findings: Sequence[Finding]) -> BreakdownRows | None:
    """Return one bar per finding: its certain gain, and the part within its error."""
    shown = [finding for finding in findings if finding.gain_fraction > 0][:_MOST_BARS]
    if not shown:
        return None
    certain = tuple(max(0.0, finding.certain_gain_fraction) * finding.step_ns for finding in shown)
    unsure = tuple(bar.saved_ns - sure for bar, sure in zip(shown, certain, strict=True))
    labels = tuple(f"{place}. {finding.title}" for place, finding in enumerate(shown, start=1))
    return BreakdownRows(labels, (Part("gain", "measured", certain), Part("within its error", "idle:host", unsure)))


def _waiting(figures: Figures) -> BreakdownRows | None:
    """Return waiting and transfer times per axis, for one step of the mean rank."""
    waits, transfers = figures.along("wait_time", "axis"), figures.along("transfer_time", "axis")
    axes = axes_in_order(waits | transfers)
    if not axes:
        return None
    parts = (
        Part("waiting for the last member", "idle:host", tuple(float(waits.get(axis, 0)) for axis in axes)),
        Part("transfer", "comm", tuple(float(transfers.get(axis, 0)) for axis in axes)),
    )
    return BreakdownRows(tuple(str(axis) for axis in axes), parts)


def _kernels(result: KernelsResult) -> BreakdownRows | None:
    """Return the longest kernels, or the longest ops if there are no kernels (on a CPU)."""
    rows = [(kernel.name, kernel.total_ns) for kernel in result.kernels]
    rows = rows or [(f"{op.name} {op.dims}".strip(), op.time_ns) for op in result.ops]
    rows = rows[:_MOST_KERNELS]
    if not rows:
        return None
    labels = tuple(f"{place}. {name}" for place, (name, _) in enumerate(rows, start=1))
    times = tuple(float(ns) for _, ns in rows)
    return BreakdownRows(labels, (Part("time over all ranks and steps", "compute", times),))


def _host(result: HostResult) -> BreakdownRows | None:
    """Return what blocks each rank's host, per step."""
    blocked_ns = [_positive(rank.sync_ns) + _positive(rank.input_ns) + _positive(rank.gc_ns) for rank in result.ranks]
    ranks = [result.ranks[place] for place in _largest(blocked_ns)]
    parts = (
        Part("blocking calls", "comm", tuple(_positive(rank.sync_ns) for rank in ranks)),
        Part("data loading", "comm:dp", tuple(_positive(rank.input_ns) for rank in ranks)),
        Part("garbage collection", "comm:pp", tuple(_positive(rank.gc_ns) for rank in ranks)),
    )
    if not any(sum(part.values_ns) for part in parts):
        return None
    return BreakdownRows(tuple(f"rank {rank.rank}" for rank in ranks), parts)


def _lateness(figures: Figures) -> RankBars | None:
    """Return how much each rank delays the others; the mark is the mean over all ranks."""
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        return None
    ranks, values = tuple(cost), [float(value) for value in cost.values()]
    mean, shown = sum(values) / len(values), _largest(values)
    label = "own delay in a step" if len(shown) == len(ranks) else f"own delay in a step, largest of {len(ranks)} ranks"
    labels, bars = tuple(f"rank {ranks[place]}" for place in shown), tuple(values[place] for place in shown)
    return RankBars(label, labels, bars, (mean,) * len(bars), "comm", Unit.NS)


def _largest(values: Sequence[float]) -> list[int]:
    """Return the indexes of the largest values, as many as a picture has bars, in their order."""
    return sorted(sorted(range(len(values)), key=lambda place: -values[place])[:_MOST_BARS])


def _utilization(figures: Figures) -> BreakdownRows | None:
    """Return the step as the time for model FLOPs at the peak, for recomputed ones, and the rest."""
    used, step = figures.overall("mfu"), figures.overall("step_time")
    if used is None or not step:
        return None
    again = max(0.0, (figures.overall("hfu") or used) - used)
    parts = (
        Part("model FLOP at the peak", "compute", (used * step,)),
        Part("recomputed FLOP at the peak", "memcpy", (again * step,)),
        Part("the rest of the step", "idle:other", ((1 - used - again) * step,)),
    )
    return BreakdownRows(("step",), parts)


def _positive(value: float) -> float:
    return value if value == value and value > 0 else 0.0  # noqa: PLR0124 - checks for NaN
