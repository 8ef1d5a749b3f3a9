"""One configuration by part: its step and its memory, as blocks, as charts and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from usp_prof.charts.inputs import MemoryParts
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.model.footprint import Footprint
from usp_prof.model.metric import Unit
from usp_prof.report.document import Stack, StackPart
from usp_prof.report.format import quantity

FILLS = {
    "parameter_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "gathered_bytes": "gathered weights",
    "activation_bytes": "activations",
    "logit_bytes": "logits",
    "overhead_bytes": "buffers and context",
}
"""Parts of memory, in display order, with their labels."""
ROLES = ("compute", "memcpy", "comm:cp", "comm:ep", "comm:dp", "comm:pp", "idle")
"""The color of each part."""
BAR = 40
"""Length of the bar of a whole in text."""


def step_parts(plan: Plan) -> Stack:
    """Return the parts of the busiest rank's step."""
    parts = [StackPart("compute", "compute", plan.compute_ns)]
    parts += [StackPart(f"exposed {axis}", f"comm:{axis}", time) for axis, time in plan.exposed_ns.items()]
    parts += [
        StackPart("pipeline bubble", "idle:bubble", plan.bubble_ns),
        StackPart("optimizer", "memcpy", plan.optimizer_ns),
        StackPart("fixed: losses, barriers, host", "idle:host", plan.fixed_ns),
    ]  # fmt: skip
    return Stack("Step of the busiest rank", plan.step_ns, Unit.NS, tuple(part for part in parts if part.value > 0))


def memory_parts(need: Footprint, title: str) -> Stack:
    """Return the parts of a rank's memory."""
    parts = tuple(
        StackPart(label, role, getattr(need, part))
        for (part, label), role in zip(FILLS.items(), ROLES, strict=True)
        if getattr(need, part)
    )
    return Stack(title, need.total_bytes, Unit.BYTES, parts)


def memory_chart(ranks: Sequence[Footprint], room_bytes: float) -> MemoryParts:
    """Return the parts of the memory of each pipeline rank as a chart."""
    labels = tuple(f"pipeline rank {rank}" for rank in range(len(ranks)))
    parts = tuple(
        (label, role, tuple(float(getattr(need, part)) for need in ranks))
        for (part, label), role in zip(FILLS.items(), ROLES, strict=True)
    )
    return MemoryParts(labels, parts, room_bytes)


def bars(stack: Stack, full_bar: float) -> list[str]:
    """Return one line per part, with a bar that shows its share of `full_bar`."""
    widest = max(map(len, FILLS.values()))
    lines = []
    for part in stack.parts:
        filled = "█" * min(BAR, round(BAR * part.value / full_bar))
        lines.append(f"  {part.label:{widest}} {quantity(part.value, stack.unit):>10} {filled}".rstrip())
    return lines


def fullest(ranks: Sequence[Footprint]) -> int:
    """Return the pipeline rank that needs the most memory."""
    return max(range(len(ranks)), key=lambda rank: ranks[rank].total_bytes)


def interval(plan: Plan, room_bytes: float) -> str:
    """Describe the 80% interval, and the probability that the plan fits if the device's memory is known."""
    step = " to ".join(quantity(value, Unit.NS) for value in (plan.step_low_ns, plan.step_high_ns))
    need = " to ".join(quantity(value, Unit.BYTES) for value in (plan.memory_low_bytes, plan.memory_high_bytes))
    text = f"80% interval: {step} and {need}."
    if not isfinite(room_bytes):
        return f"{text} The memory of the device is unknown."
    room = quantity(room_bytes, Unit.BYTES)
    return f"{text} Probability that the plan fits the {room} that tensors can fill: {plan.fit_probability:.0%}."
