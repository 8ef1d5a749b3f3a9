"""Pictures of answers: the first chart of the report's section, or one made of its figures where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.charts.inputs import BreakdownRows, Part, RankBars
from usp_prof.report.document import Chart, Stack
from usp_prof.report.figures import axes_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from usp_prof.analyses.host import HostResult
    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.analyses.result import Result
    from usp_prof.charts.inputs import ChartInput
    from usp_prof.model.finding import Finding
    from usp_prof.report.document import Section
    from usp_prof.report.figures import Figures

_MOST = 40


def picture(name: str, section: Section | None, result: Result, figures: Figures) -> ChartInput | None:
    """Give what an answer draws; None where it knows nothing that could be drawn."""
    charts = [block.data for block in (section.blocks if section is not None else ()) if isinstance(block, Chart)]
    if charts:
        return charts[0]
    made: dict[str, Callable[[], ChartInput | None]] = {
        "collectives": lambda: _waiting(figures),
        "stragglers": lambda: _lateness(figures),
        "kernels": lambda: _kernels(cast("KernelsResult", result)),
        "host": lambda: _host(cast("HostResult", result)),
        "mfu": lambda: _utilisation(figures),
    }
    return made[name]() if name in made else stack_of(section.blocks if section is not None else ())


def stack_of(blocks: Iterable[object]) -> BreakdownRows | None:
    """Draw the first stack as one bar."""
    stack = next((block for block in blocks if isinstance(block, Stack)), None)
    if stack is None:
        return None
    parts = tuple(Part(part.label, part.role, (float(part.value),)) for part in stack.worth_a_line)
    return BreakdownRows(("",), parts)


def gains(found: Sequence[Finding], step_ns: float) -> BreakdownRows | None:
    """Draw what each finding would save, and how much of that is within its error."""
    shown = [finding for finding in found if finding.gain_fraction > 0][:_MOST]
    if not shown or not step_ns:
        return None
    certain = tuple(max(0.0, finding.certain_gain_fraction) * step_ns for finding in shown)
    unsure = tuple(each.gain_fraction * step_ns - sure for each, sure in zip(shown, certain, strict=True))
    labels = tuple(f"{place}. {finding.title}" for place, finding in enumerate(shown, start=1))
    return BreakdownRows(labels, (Part("gain", "measured", certain), Part("within its error", "idle:host", unsure)))


def _waiting(figures: Figures) -> BreakdownRows | None:
    """Draw what calls wait and transfer on each axis, in a step of the mean rank."""
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
    """Draw the longest kernels, or the longest ops where there are no kernels (on a CPU)."""
    rows = [(kernel.name, kernel.total_ns) for kernel in result.kernels]
    rows = rows or [(f"{op.name} {op.dims}".strip(), op.time_ns) for op in result.ops]
    rows = rows[:16]
    if not rows:
        return None
    labels = tuple(f"{place}. {name}" for place, (name, _) in enumerate(rows, start=1))
    return BreakdownRows(
        labels, (Part("time over all ranks and steps", "compute", tuple(float(ns) for _, ns in rows)),)
    )


def _host(result: HostResult) -> BreakdownRows | None:
    """Draw what keeps each rank's host in a step."""
    ranks = result.ranks[:_MOST]
    parts = (
        Part("blocking calls", "comm", tuple(_known(rank.sync_ns) for rank in ranks)),
        Part("data loading", "comm:dp", tuple(_known(rank.input_ns) for rank in ranks)),
        Part("garbage collection", "comm:pp", tuple(_known(rank.gc_ns) for rank in ranks)),
    )
    if not any(sum(part.values_ns) for part in parts):
        return None
    return BreakdownRows(tuple(f"rank {rank.rank}" for rank in ranks), parts)


def _lateness(figures: Figures) -> RankBars | None:
    """Draw how late each rank is by its own doing; the mark is the mean of all."""
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        return None
    values = tuple(float(value) for value in cost.values())[:_MOST]
    mean = sum(cost.values()) / len(cost)
    labels = tuple(f"rank {rank}" for rank in cost)[:_MOST]
    return RankBars("late by its own doing, in a step", labels, values, (mean,) * len(values), "comm", is_time=True)


def _utilisation(figures: Figures) -> BreakdownRows | None:
    """Draw the step as the time its model FLOP need at the peak, the time of recomputed ones, and the rest."""
    used, step = figures.whole("mfu"), figures.whole("step_time")
    if used is None or not step:
        return None
    again = max(0.0, (figures.whole("hfu") or used) - used)
    parts = (
        Part("model FLOP at the peak", "compute", (used * step,)),
        Part("recomputed FLOP at the peak", "memcpy", (again * step,)),
        Part("the rest of the step", "idle:other", ((1 - used - again) * step,)),
    )
    return BreakdownRows(("step",), parts)


def _known(value: float) -> float:
    return value if value == value and value > 0 else 0.0  # noqa: PLR0124 - NaN is not known
