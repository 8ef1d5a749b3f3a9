"""Choice: why the first plan is first: what rules others out, close runners-up, and what would change the order.

A step is the sum of its parts; if some runs stall, it is the step at the expected speed. If the first plan spends more
time on a part than a runner-up, there is a factor on that part at which both steps are equal:

    step_1 + (f - 1) part_1 = step_2 + (f - 1) part_2      f = 1 + (step_2 - step_1) / (part_1 - part_2)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.answers.one_plan import step_parts
from usp_prof.extras.planner.predict import Prediction
from usp_prof.model.configuration import Columns

BARRING_KNOBS = ("tp", "pp", "cp", "ep", "zero", "micro_batch")
"""Knobs whose values may rule out all configurations."""
MOST_FACTOR = 3.0
"""Maximum factor on a part that counts as changing the order."""
RUNNERS_UP = 3


@dataclass(frozen=True, slots=True)
class Barred:
    """A knob's value with which nothing fits: the number of such configurations, and the lowest memory need."""

    knob: str
    value: int | str
    tried: int
    leanest_bytes: float


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A plan with different degrees than those before it, and its difference from the first."""

    plan: Prediction
    longer_fraction: float
    turned_by: str
    """Part of the step that changes the order at the smallest factor; empty if none does within `MOST_FACTOR`."""
    turned_at: float
    """Factor on that part above which this plan is faster."""

    def within(self, first: Prediction) -> bool:
        """Return whether the two cannot be distinguished: the first's 80% interval contains this step."""
        return self.plan.step_ns <= first.step_high_ns


def barred(columns: Columns, need: NDArray[np.float64], fits: NDArray[np.bool_]) -> tuple[Barred, ...]:
    """Return the values with which nothing fits although something fits with others, by knob and value."""
    barring = []
    for knob in BARRING_KNOBS:
        values = np.asarray(getattr(columns, knob))
        for value in np.unique(values).tolist():
            has = values == value
            if fits.any() and not fits[has].any():
                barring.append(Barred(knob, int(value), int(has.sum()), float(need[has].min())))
    return tuple(barring)


def runners_up(plans: Iterable[Prediction]) -> tuple[RunnerUp, ...]:
    """Return the fastest plans whose degrees differ from each other's and from the first's."""
    first, *slower_plans = plans
    seen = {_degrees(first)}
    chosen: list[RunnerUp] = []
    for plan in slower_plans:
        if _degrees(plan) in seen:
            continue
        seen.add(_degrees(plan))
        chosen.append(_compared(first, plan))
        if len(chosen) == RUNNERS_UP:
            break
    return tuple(chosen)


def _degrees(plan: Prediction) -> tuple[int, ...]:
    return (*plan.configuration.degrees().values(), plan.configuration.zero)


def _parts(plan: Prediction) -> dict[str, float]:
    return {part.label: part.value for part in step_parts(plan).parts}


def _compared(first: Prediction, other: Prediction) -> RunnerUp:
    gap, other_parts = other.expected_step_ns - first.expected_step_ns, _parts(other)
    turns = {
        name: 1 + gap / (time - other_parts.get(name, 0.0))
        for name, time in _parts(first).items()
        if time > other_parts.get(name, 0.0)
    }
    soonest = min(turns, key=lambda name: turns[name], default="")
    if not soonest or turns[soonest] > MOST_FACTOR:
        return RunnerUp(other, gap / first.step_ns, "", 0.0)
    return RunnerUp(other, gap / first.step_ns, soonest, max(turns[soonest], 1.0))
