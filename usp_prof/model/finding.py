"""Finding: a named pattern, its place, an edit of the run as plain data, and what the edit is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from usp_prof.model.health import HealthRow  # noqa: TC001 - msgspec reads the fields' types
from usp_prof.model.metric import Better, Metric, Range, Unit, Value

Plain = str | int | float | bool | None
PlainMap = Mapping[str, Plain]
EMPTY: PlainMap = MappingProxyType({})


class Basis(StrEnum):
    """How a gain was got."""

    REPLAYED = "replayed"
    MODELLED = "modelled"
    BOUND = "bound"


class Level(StrEnum):
    """How much a finding matters."""

    NOTE = "note"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Gains are fractions of the job's step; `error_fraction` is the gain's own uncertainty.

    `cumulative_gain_fraction` is the most that this and some of the findings before it gain together. `part_of` is the
    place in the list of an earlier finding with the same cause, -1 where it is a cause of its own.
    """

    code: str
    title: str
    where: PlainMap
    evidence: PlainMap
    edit: str = ""
    gain_fraction: float = 0.0
    cumulative_gain_fraction: float = 0.0
    basis: Basis = Basis.BOUND
    error_fraction: float = 0.0
    level: Level = Level.WARNING
    advice: str = ""
    settings: PlainMap = field(default_factory=lambda: EMPTY)
    part_of: int = -1
    rows: str = ""
    """A SELECT over the run's tables whose rows prove it."""
    is_choice: bool = False
    """The run's configuration costs this time: it is nothing's effect, and goes away with nothing else."""
    step_ns: float = 0.0
    """The step that the gain is a share of: the replayed mean, without what recording adds if that is known."""

    @property
    def certain_gain_fraction(self) -> float:
        """The gain less its error: what is certain of it, below 0 where nothing is."""
        return self.gain_fraction - self.error_fraction

    @property
    def saved_ns(self) -> float:
        """The gain as a time."""
        return self.gain_fraction * self.step_ns

    @property
    def place(self) -> str:
        """Where it is, in words: `axis tp, rank 3`; empty where it is of the whole run."""
        return ", ".join(f"{key} {value}" for key, value in self.where.items())

    @property
    def is_noise(self) -> bool:
        """Whether the gain does not exceed its error: no reason to act."""
        return self.gain_fraction > 0 and self.certain_gain_fraction <= 0


GAIN = Range(-math.inf, 1.0)
"""Range of a gain: no change saves more than the whole step, while a bad one may lengthen it without bound."""

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


JOB_SLOWDOWN = Metric(
    "job_slowdown", Unit.RATIO, Better.LOWER, "Job's slowdown",
    "T / T_ideal: the mean step over its replay with all ranks alike (compute at the mean of peers, transfers and "
    "hosts at the median), as `whatif --ideal` gives it. Not given where ranks wait in calls that are not matched.",
    inputs="measured and replayed steps",
)  # fmt: skip


def slowdown_values(ideal: IdealStep | None) -> list[Value]:
    """Give the metric value of a run whose ideal is known."""
    if ideal is None or ideal.slowdown is None:
        return []
    return [Value(JOB_SLOWDOWN, ideal.slowdown)]


@dataclass(frozen=True, slots=True)
class Found:
    """The findings, most important first, which rules could not be asked, and the step with all ranks alike."""

    findings: tuple[Finding, ...]
    skipped: tuple[HealthRow, ...]
    ideal: IdealStep | None = None
    """`None` of one rank alone, which is nobody's equal."""
