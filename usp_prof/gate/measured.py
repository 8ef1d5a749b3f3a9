"""A measured run as plain data (all that a later check needs), and the baseline file that holds several of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

import msgspec

from usp_prof.gate.facts import Fact  # noqa: TC001 - msgspec reads the annotations
from usp_prof.gate.series import Series  # noqa: TC001
from usp_prof.model.errors import InputError
from usp_prof.model.files import read_bytes, write
from usp_prof.model.finding import Level  # noqa: TC001
from usp_prof.model.health import Severity  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path


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


# The baseline: one JSON file with the measured runs of a configuration


FORMAT = "usp-prof-baseline"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Runs of one configuration, recorded one after another; several tell how much runs differ among themselves."""

    runs: tuple[Measured, ...]
    format: str = FORMAT
    version: int = VERSION


def save(baseline: Baseline, path: str | Path) -> None:
    """Write a baseline, one line for each series, so that a difference can be read; the same runs, the same bytes."""
    runs = ",\n".join(_text(run) for run in baseline.runs)
    text = f'{{"format":{_one(baseline.format)},"version":{baseline.version},"runs":[\n{runs}\n]}}\n'
    write(path, text, "name another file with -o")


def _text(run: Measured) -> str:
    return "{\n" + ",\n".join(f'"{each.name}":{_lines(getattr(run, each.name))}' for each in fields(run)) + "}"


def _lines(value: object) -> str:
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return "[\n" + ",\n".join(f" {_one(each)}" for each in value) + "]"
    return _one(value)


def _one(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def load(path: str | Path) -> Baseline:
    """Read a baseline."""
    hint = "make one with: usp-prof baseline save RUN -o baseline.json"
    data = read_bytes(path, "baseline", hint)
    try:
        baseline = msgspec.json.decode(data, type=Baseline)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no baseline: {error}", hint=hint) from error
    if baseline.format != FORMAT or not baseline.runs:
        raise InputError(f"{path} is no baseline", hint=hint)
    if baseline.version > VERSION:
        raise InputError(f"{path} was written by a later usp-prof", hint="update usp-prof, or save the baseline again")
    return baseline
