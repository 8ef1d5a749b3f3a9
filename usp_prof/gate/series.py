"""Series: one metric at one place of one run, with one value per step.

The values of several ranks are folded into one. Times use the mean, so the parts of a step still add up to it. Memory
uses the maximum, since the fullest rank is the one that fails. Exact figures (counts, FLOP) use the sum.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from usp_prof.analyses.step_time import ordinary_steps
from usp_prof.model.metric import Better, Unit, Value

WHOLE_RUN = -1
"""The step number of a sample for the whole run."""

EXACT = (Unit.COUNT, Unit.FLOP)
"""Units of figures that do not depend on the machine: equal for any two runs of one configuration."""

_FOLDED = ("rank", "step")


DIVIDED_AMONG_RANKS = frozenset({"critical_path_fraction"})
"""Shares that add up to one over the ranks: their mean would depend only on the number of ranks."""


class Fold(StrEnum):
    """How the samples of several ranks are combined."""

    MEAN = "mean"
    MAX = "max"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric at one place.

    `samples[i]` is the value of `steps[i]`; a single sample at step -1 covers the whole run.
    """

    metric: str
    place: tuple[tuple[str, str], ...]
    unit: Unit
    better: Better
    title: str
    steps: tuple[int, ...]
    samples: tuple[float, ...]

    @property
    def key(self) -> str:
        """The name of the series in options and reports: `exposed_comm_fraction[axis=dp]`."""
        inside = ",".join(f"{name}={value}" for name, value in self.place)
        return f"{self.metric}[{inside}]" if inside else self.metric

    @property
    def mean(self) -> float:
        """The mean over the steps."""
        return sum(self.samples) / len(self.samples)

    @property
    def per_step(self) -> bool:
        """Whether there is one sample per step, so that noise can be estimated from the run."""
        return self.steps != (WHOLE_RUN,)

    @property
    def exact(self) -> bool:
        """Whether the figure does not depend on the machine."""
        return self.unit in EXACT


def default_fold(unit: Unit) -> Fold:
    """Return the default way to combine ranks for a unit."""
    if unit is Unit.BYTES:
        return Fold.MAX
    return Fold.SUM if unit in EXACT else Fold.MEAN


def from_values(values: Iterable[Value]) -> tuple[Series, ...]:
    """Fold metric values into series, sorted by key; values without a rank take precedence over folded ranks."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], dict[tuple[bool, int], list[float]]] = {}
    metrics = {}
    for value in values:
        if not math.isfinite(value.value):
            continue
        place = tuple(sorted((name, str(v)) for name, v in value.dims.items() if name not in _FOLDED))
        slot = samples.setdefault((value.metric.id, place), defaultdict(list))
        slot["rank" in value.dims, int(value.dims.get("step", WHOLE_RUN))].append(float(value.value))
        metrics[value.metric.id] = value.metric
    all_series = []
    for (name, place), slots in sorted(samples.items()):
        if name in DIVIDED_AMONG_RANKS and all(is_of_rank for is_of_rank, _ in slots):
            continue
        metric = metrics[name]
        steps = _steps(slots)
        fold = default_fold(metric.unit)
        folded = tuple(_fold(fold, slots.get((False, step)) or slots[True, step]) for step in steps)
        all_series.append(Series(name, place, metric.unit, metric.better, metric.title, steps, folded))
    return tuple(all_series)


def _steps(slots: dict[tuple[bool, int], list[float]]) -> tuple[int, ...]:
    steps = sorted({step for _, step in slots if step != WHOLE_RUN})
    return tuple(steps) if steps else (WHOLE_RUN,)


def _fold(fold: Fold, values: list[float]) -> float:
    if fold is Fold.MAX:
        return max(values)
    total = math.fsum(values)
    return total if fold is Fold.SUM else total / len(values)


# Derived series: shares of the step, and rates per step. A share is comparable between machines of different speed. A
# rate (MFU, tokens per second) that is known only for the whole run is spread over the steps by the inverse of their
# times. This estimates its noise.


STEP_TIME, WINDOW_TIME = "step_time", "window_time"
SHARES = {
    "exposed_comm_time": ("exposed_comm_fraction", "Exposed communication"),
    "idle_time": ("idle_fraction", "Idle"),
}
"""Times that are also gated as a share of their step, or of the recorded window if steps are unknown."""

RATES = ("mfu", "hfu", "tokens_per_second")
"""Figures proportional to the inverse of the step time, by a factor that is constant over the steps."""


def with_derived(series: Iterable[Series]) -> tuple[Series, ...]:
    """Spread rates over the steps and add the shares of the step; the result is sorted by key."""
    all_series = list(series)
    wholes = {
        each_series.metric: each_series
        for each_series in all_series
        if each_series.metric in (STEP_TIME, WINDOW_TIME) and not each_series.place
    }
    if not wholes:
        return tuple(all_series)
    total = wholes.get(STEP_TIME) or wholes[WINDOW_TIME]
    lengths = dict(zip(total.steps, total.samples, strict=True))
    if total.metric == STEP_TIME:
        all_series = [
            _by_step(each_series, lengths) if each_series.metric in RATES and not each_series.per_step else each_series
            for each_series in all_series
        ]
    of_what = "step" if total.metric == STEP_TIME else "window"
    shares = [_share(each_series, lengths, of_what) for each_series in all_series if each_series.metric in SHARES]
    all_series += [share for share in shares if share.steps]
    return tuple(sorted(all_series, key=lambda each_series: each_series.key))


def _share(time: Series, lengths: dict[int, float], of_what: str) -> Series:
    name, title = SHARES[time.metric]
    pairs = [(s, v / lengths[s]) for s, v in zip(time.steps, time.samples, strict=True) if lengths.get(s)]
    return replace(
        time,
        metric=name,
        title=f"{title}, share of the {of_what}",
        unit=Unit.FRACTION,
        better=Better.LOWER,
        steps=tuple(step for step, _ in pairs),
        samples=tuple(value for _, value in pairs),
    )


def _by_step(rate: Series, lengths: dict[int, float]) -> Series:
    """Return the rate of each step from that of a run, which is over the mean of its ordinary steps."""
    is_ordinary = ordinary_steps(list(lengths.values()))
    mean_length = statistics.fmean(
        length for length, is_one in zip(lengths.values(), is_ordinary, strict=True) if is_one
    )
    pairs = [(step, rate.samples[0] * mean_length / length) for step, length in sorted(lengths.items()) if length > 0]
    if mean_length <= 0 or not pairs:
        return rate
    return replace(rate, steps=tuple(step for step, _ in pairs), samples=tuple(value for _, value in pairs))
