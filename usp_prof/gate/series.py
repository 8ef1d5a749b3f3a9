"""What does the gate look at? Series: one metric in one place of one run, with a sample for each step.

Several ranks become one sample by their mean, so that the parts of a step still add up to it; memory by its maximum,
since the fullest rank is the one that fails; exact figures (counts, FLOP) by their sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.model.metric import Value

WHOLE_RUN = -1
"""The step number of a sample that stands for the whole run."""

EXACT = (Unit.COUNT, Unit.FLOP)
"""Units of figures that do not depend on the machine: two runs of one configuration give the same."""

_FOLDED = ("rank", "step")


class Fold(StrEnum):
    """How the samples of several ranks become one."""

    MEAN = "mean"
    MAX = "max"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric at one place: `steps[i]` gave `samples[i]`; a single sample at step -1 is the whole run's."""

    metric: str
    place: tuple[tuple[str, str], ...]
    unit: Unit
    better: Better
    title: str
    steps: tuple[int, ...]
    samples: tuple[float, ...]

    @property
    def key(self) -> str:
        """Name the series as options and reports do: `exposed_comm_fraction[axis=dp]`."""
        return series_key(self.metric, self.place)

    @property
    def per_step(self) -> bool:
        """Say whether there is a sample for each step, so that noise can be told from the run itself."""
        return self.steps != (WHOLE_RUN,)

    @property
    def exact(self) -> bool:
        """Say whether the figure does not depend on the machine."""
        return self.unit in EXACT


def series_key(metric: str, place: Iterable[tuple[str, str]]) -> str:
    """Write metric and place as one name."""
    inside = ",".join(f"{name}={value}" for name, value in place)
    return f"{metric}[{inside}]" if inside else metric


def default_fold(unit: Unit) -> Fold:
    """Say how ranks are folded where nothing else is asked."""
    if unit is Unit.BYTES:
        return Fold.MAX
    return Fold.SUM if unit in EXACT else Fold.MEAN


def from_values(values: Iterable[Value]) -> tuple[Series, ...]:
    """Fold metric values into series, sorted by key; a run's own per-step or whole values win over folded ranks."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], dict[tuple[bool, int], list[float]]] = {}
    metrics = {}
    for value in values:
        if not math.isfinite(value.value):
            continue
        place = tuple(sorted((name, str(v)) for name, v in value.dims.items() if name not in _FOLDED))
        slot = samples.setdefault((value.metric.id, place), defaultdict(list))
        slot["rank" in value.dims, int(value.dims.get("step", WHOLE_RUN))].append(float(value.value))
        metrics[value.metric.id] = value.metric
    found = []
    for (name, place), slots in sorted(samples.items()):
        metric = metrics[name]
        steps = _steps(slots)
        fold = default_fold(metric.unit)
        folded = tuple(_fold(fold, slots.get((False, step)) or slots[True, step]) for step in steps)
        found.append(Series(name, place, metric.unit, metric.better, metric.title, steps, folded))
    return tuple(found)


def _steps(slots: dict[tuple[bool, int], list[float]]) -> tuple[int, ...]:
    steps = sorted({step for _, step in slots if step != WHOLE_RUN})
    return tuple(steps) if steps else (WHOLE_RUN,)


def _fold(fold: Fold, values: list[float]) -> float:
    if fold is Fold.MAX:
        return max(values)
    total = math.fsum(values)
    return total if fold is Fold.SUM else total / len(values)
