"""What does the gate keep of a run? Everything that a later check needs, as plain data that goes into a JSON file."""

from __future__ import annotations

from dataclasses import dataclass

from usp_prof.gate.facts import Fact  # noqa: TC001 - msgspec reads the annotations
from usp_prof.gate.series import Series  # noqa: TC001
from usp_prof.model.finding import Level  # noqa: TC001
from usp_prof.model.health import Severity  # noqa: TC001


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Something that was wrong with a run's input."""

    code: str
    severity: Severity
    rank: int = -1
    count: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True, order=True)
class SeenFinding:
    """A finding that a run had: enough to know it again."""

    code: str
    level: Level
    title: str
    where: str = ""
    gain: float = 0.0
    """What mending it is worth, as a fraction of the step."""


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One op, kernel or call of the step: what it is, where in the step it stands, and its time per step and rank."""

    sort: str
    name: str
    shape: str
    phase: str
    ns_per_step: float
    count_per_step: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, measured."""

    label: str
    profiler: str
    created: str = ""
    facts: tuple[Fact, ...] = ()
    series: tuple[Series, ...] = ()
    findings: tuple[SeenFinding, ...] = ()
    damage: tuple[Damage, ...] = ()
    ranks: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    work: tuple[Work, ...] = ()

    def by_key(self) -> dict[str, Series]:
        """Give the series by their names."""
        return {series.key: series for series in self.series}

    def value(self, key: str) -> float | None:
        """Give the mean of a series over its steps; `None` where it was not measured."""
        series = next((each for each in self.series if each.key == key), None)
        return sum(series.samples) / len(series.samples) if series else None
