"""Ideal step: the mean step as measured beside its replay with all ranks alike, kept with a run's findings."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_LOSS = 0.01
"""A smaller share of the step is no loss to be divided among parts."""


@dataclass(frozen=True, slots=True)
class IdealStep:
    """The mean step as measured and with all ranks alike; `unknown` says why the latter is not known, else empty."""

    step_ns: float
    ideal_ns: float
    error_fraction: float = 0.0
    unknown: str = ""

    @property
    def slowdown(self) -> float | None:
        """S: how many times its ideal the step takes; `None` where that is not known."""
        return None if self.unknown or self.ideal_ns <= 0 else self.step_ns / self.ideal_ns

    @property
    def is_loss(self) -> bool:
        """Whether the step loses more than the prediction's error."""
        lost = self.step_ns - self.ideal_ns
        return not self.unknown and lost > max(LEAST_LOSS, self.error_fraction) * self.step_ns
