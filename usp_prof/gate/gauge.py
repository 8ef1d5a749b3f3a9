"""In what measure are runs compared? In logarithms where a change is relative, so that twice and half are as far.

A rate is one over a time: in plain figures a run that takes 1.7 times as long loses 41 % of its rate, and the same
noise would call one a regression and not the other. In logarithms both say the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.limit import Scale
from usp_prof.model.metric import Better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.gate.limit import Limit
    from usp_prof.gate.series import Series


@dataclass(frozen=True, slots=True)
class Gauge:
    """How values become what is subtracted, and differences become changes again; `unit` divides where no log does."""

    log: bool
    unit: float = 1.0

    def into(self, samples: Sequence[float]) -> NDArray[np.float64]:
        """Turn values into the measure."""
        values = np.asarray(samples, dtype=np.float64)
        return np.log(values) if self.log else values / self.unit

    def value(self, centre: float) -> float:
        """Turn a centre back into the metric's unit."""
        return math.exp(centre) if self.log else centre * self.unit

    def change(self, difference: float) -> float:
        """Turn a difference into a change in the rule's scale."""
        if not self.log:
            return difference
        return math.expm1(difference) if difference < _LARGEST else math.inf

    def size(self, centre: float) -> float:
        """Give what a relative spread is multiplied with to lie in the measure."""
        return 1.0 if self.log else abs(centre)

    def limit(self, limit: Limit, better: Better) -> float:
        """Turn an allowed change for the worse into a difference."""
        if not self.log or not math.isfinite(limit.amount):
            return limit.amount
        if better is not Better.HIGHER:
            return math.log1p(limit.amount)
        return -math.log1p(-limit.amount) if limit.amount < 1 else math.inf


_LARGEST = 700.0


def gauge_for(before: Sequence[Series], after: Series, scale: Scale) -> Gauge | None:
    """Choose the measure; `None` where the baseline is 0, so that there is no relative change."""
    if scale is Scale.ABSOLUTE:
        return Gauge(log=False)
    if not after.exact and min(min(each.samples) for each in (*before, after)) > 0:
        return Gauge(log=True)
    centre = abs(float(np.median([np.median(each.samples) for each in before])))
    return Gauge(log=False, unit=centre) if centre else None
