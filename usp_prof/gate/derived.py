"""Which series does the gate make itself? Shares of the step, and rates step by step where only the whole is known.

A share needs no fast machine to be compared; a rate (MFU, tokens per second) goes with the inverse of the step time,
so that the steps tell its noise.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.gate.series import Series

STEP_TIME = "step_time"
SHARES = {
    "exposed_comm_time": ("exposed_comm_fraction", "Exposed communication, share of the step"),
    "idle_time": ("idle_fraction", "Idle, share of the step"),
}
"""Times that are also gated as a share of their step."""

RATES = ("mfu", "hfu", "tokens_per_second")
"""Figures that are one over the step time times something that does not change from step to step."""


def with_derived(series: Iterable[Series]) -> tuple[Series, ...]:
    """Spread rates over the steps and add the shares of the step to a run's series, sorted by key."""
    listed = list(series)
    step = next((each for each in listed if each.metric == STEP_TIME and not each.place), None)
    if step is None:
        return tuple(listed)
    lengths = dict(zip(step.steps, step.samples, strict=True))
    listed = [_by_step(each, lengths) if each.metric in RATES and not each.per_step else each for each in listed]
    shares = [_share(each, lengths) for each in listed if each.metric in SHARES]
    return tuple(sorted([*listed, *(share for share in shares if share.steps)], key=lambda each: each.key))


def _share(time: Series, lengths: dict[int, float]) -> Series:
    name, title = SHARES[time.metric]
    pairs = [(s, v / lengths[s]) for s, v in zip(time.steps, time.samples, strict=True) if lengths.get(s)]
    return replace(
        time,
        metric=name,
        title=title,
        unit=Unit.FRACTION,
        better=Better.LOWER,
        steps=tuple(step for step, _ in pairs),
        samples=tuple(value for _, value in pairs),
    )


def _by_step(rate: Series, lengths: dict[int, float]) -> Series:
    whole = statistics.median(lengths.values())
    pairs = [(step, rate.samples[0] * whole / length) for step, length in sorted(lengths.items()) if length > 0]
    if whole <= 0 or not pairs:
        return rate
    return replace(rate, steps=tuple(step for step, _ in pairs), samples=tuple(value for _, value in pairs))
