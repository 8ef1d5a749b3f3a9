"""Memory: the footprint of the ranks that decide, of many configurations at once, and how likely they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.footprint import Habits, Stage, footprints
from usp_prof.planner.stages import WHERE, Stages, stages_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.model.footprint import Parts
    from usp_prof.model.shape import Column
    from usp_prof.planner.cases import Cases


def of_stages(c: Cases, stages: Stages | None = None) -> tuple[Parts, ...]:
    """Give the footprint of the first, a middle and the last rank of each pipeline."""
    stages = stages or stages_of(c)
    p = c.profile
    habits = Habits(p.activation_scale, p.logit_bytes, p.overhead_bytes, p.buffer_fraction)
    held = [
        Stage(stages.layers[row], stages.embedding[row], stages.head[row], stages.kept[row])
        for row in range(len(WHERE))
    ]
    return tuple(footprints(c.shape, c, stage, habits) for stage in held)


def total(parts: Parts) -> NDArray[np.float64]:
    """Add up the parts."""
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def fullest(found: tuple[Parts, ...]) -> Parts:
    """Give the parts of the rank that needs most, case by case."""
    worst = np.stack([total(each) for each in found]).argmax(axis=0)
    return {part: np.choose(worst, [each[part] for each in found]) for part in found[0]}


def fit_probability(peak: NDArray[np.float64], room: Column, spread: Column) -> NDArray[np.float64]:
    """Give how likely a predicted peak stays below the room: logistic, 80 % of the peaks within `spread`."""
    # A logistic distribution holds 80 % within 2.197 scales on either side.
    return np.asarray(1 / (1 + (peak / room) ** (2.197 / np.asarray(spread))))
