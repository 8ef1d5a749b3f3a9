"""Measured runs: everything a later check needs, as plain data, and the baseline file that contains several runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np

from usp_prof._version import __version__
from usp_prof.analyses import NAMES
from usp_prof.analyses.result import impossible
from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import combinations, distinct
from usp_prof.columns.table import Columns
from usp_prof.gate.facts import Fact, facts_of
from usp_prof.gate.series import Series, from_values, with_derived
from usp_prof.model.errors import InputError
from usp_prof.model.files import ERRORS, checked, is_later, read_bytes, write
from usp_prof.model.finding import Finding, IdealStep, Level, slowdown_values
from usp_prof.model.health import Severity
from usp_prof.model.metric import Value
from usp_prof.model.printable import readable
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """A problem of a run's input."""

    code: str
    severity: Severity
    rank: int = -1
    count: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True, order=True)
class SeenFinding:
    """A finding of a run, with the fields that identify it in another run."""

    code: str
    level: Level
    title: str
    where: str = ""
    gain: float = 0.0
    """Gain if it is fixed, as a fraction of the step."""


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One op, kernel or call of the step: its name, shape and phase, and its time per step and rank."""

    sort: str
    name: str
    shape: str
    phase: str
    ns_per_step: float
    count_per_step: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured run."""

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
        """Return the series by key."""
        return {series.key: series for series in self.series}

    def value(self, key: str) -> float | None:
        """Return the mean of a series over its steps, or None if it was not measured."""
        series = self.by_key().get(key)
        return series.mean if series else None


# The baseline: one JSON file with the measured runs of one configuration


FORMAT = "usp-prof-baseline"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Consecutive runs of one configuration; several runs show how much runs differ from each other."""

    runs: tuple[Measured, ...]
    format: str = FORMAT
    version: int = VERSION


def save(baseline: Baseline, path: str | Path) -> None:
    """Write a baseline with one line per series, so that diffs are readable. Equal runs produce equal bytes."""
    runs = ",\n".join(_text(run) for run in baseline.runs)
    text = f'{{"format":{_single(baseline.format)},"version":{baseline.version},"runs":[\n{runs}\n]}}\n'
    write(path, text, "name another file with -o")


def _text(run: Measured) -> str:
    return "{\n" + ",\n".join(f'"{field.name}":{_lines(getattr(run, field.name))}' for field in fields(run)) + "}"


def _lines(value: object) -> str:
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return "[\n" + ",\n".join(f" {_single(item)}" for item in value) + "]"
    return _single(value)


def _single(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def load(path: str | Path) -> Baseline:
    """Read a baseline."""
    hint = "make one with: usp-prof baseline save RUN -o baseline.json"
    data = read_bytes(path, "baseline", hint)
    try:
        raw = msgspec.json.decode(data)
        if is_later(raw, FORMAT, VERSION):  # checked first: a later version may have other fields
            raise InputError(
                f"{path} was written by a later usp-prof", hint="update usp-prof, or save the baseline again"
            )
        baseline = checked(Baseline, raw)
    except (*ERRORS, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a baseline: {error}", hint=hint) from error
    if baseline.format != FORMAT or not baseline.runs:
        raise InputError(f"{path} is not a baseline", hint=hint)
    return baseline


# Measure a run for the gate: values of every analysis, facts, damage, findings and the work of its steps.

# Work of a step: ops, kernels and calls by name, shape and place, with their time per step


KEPT = 200
"""Number of entries recorded per sort, by time; smaller entries do not explain a change."""

_Key = tuple[str, str, str]


def work_of(tables: TableSet) -> tuple[Work, ...]:
    """Return the work of a run: mean time and count per step and rank, largest first within each sort."""
    sums: dict[str, dict[_Key, list[float]]] = {"call": {}, "kernel": {}, "op": {}, "host op": {}}
    rank_steps = 0
    for rank in tables.ranks:
        rank_steps += int((tables.columns("steps", rank)["step"] >= 0).sum())
        for sort, key, ns, number in _work_of_rank(tables, rank):
            total = sums[sort].setdefault(key, [0.0, 0.0])
            total[0] += ns
            total[1] += number
    largest: list[Work] = []
    for sort, rows in sums.items():
        work = [Work(sort, *key, ns / max(rank_steps, 1), n / max(rank_steps, 1)) for key, (ns, n) in rows.items()]
        work.sort(key=lambda entry: (-entry.ns_per_step, entry.name, entry.shape, entry.phase))
        largest += work[:KEPT]
    return tuple(largest)


def _work_of_rank(tables: TableSet, rank: int) -> Iterator[tuple[str, _Key, float, float]]:
    """Yield the sort and key of each piece of work inside steps, its time and its count."""
    ops, kernels, calls = (tables.columns(name, rank) for name in ("ops", "kernels", "collectives"))
    for (name, dims, phase), ns, number in _sums(ops, ops["self_ns"], "name", "input_dims", "phase"):
        yield "host op" if len(kernels) else "op", (name, dims, phase), ns, number
    for (name, op), ns, number in _sums(kernels, kernels["dur_ns"], "name", "op"):
        yield "kernel", (name, f"of {op}" if op else "", ""), ns, number
    sizes = np.maximum(calls["in_bytes"], calls["out_bytes"])
    for size in distinct(sizes).tolist():
        of_size = calls.take(sizes == size)
        for (op, axis), ns, number in _sums(of_size, of_size["dur_ns"], "op", "axis"):
            yield "call", (f"{axis} {op}", f"{size} B" if size >= 0 else "", ""), ns, number


def _sums(table: Columns, time_ns: Ints, *names: str) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Yield each combination of the texts of several columns inside steps, its time and its number of rows."""
    inside = table["step"] >= 0
    columns = [table.codes(name) for name in names]
    keys, place = combinations(*(codes[inside] for codes, _ in columns))
    totals = np.bincount(place, time_ns[inside], len(keys)), np.bincount(place, minlength=len(keys)).astype(float)
    for key, ns, number in zip(keys, *(total.tolist() for total in totals), strict=True):
        yield tuple(texts[code] for code, (_, texts) in zip(key, columns, strict=True)), ns, number


MOMENTS = ("step",)
"""Dimensions of a finding that do not identify it: the same problem appears in another step of every run."""


def measure(
    tables: TableSet,
    label: str,
    *,
    findings: Iterable[Finding] = (),
    analyses: Iterable[str] = NAMES,
    selection: Selection = EVERYTHING,
    ideal: IdealStep | None = None,
) -> Measured:
    """Measure a run with the named analyses. `ideal` is the replayed step with equal ranks, if available."""
    values: list[Value] = slowdown_values(ideal)
    health = list(tables.health)
    for name in analyses:
        measured = import_module(f"usp_prof.analyses.{name}").compute(tables, selection).values()
        values += measured
        health += impossible(measured)
    manifest = tables.manifest
    return Measured(
        label=readable(label),
        profiler=__version__,
        created=manifest.created if manifest else "",
        facts=facts_of(tables),
        series=with_derived(from_values(values)),
        findings=seen_findings(findings),
        damage=tuple(sorted(Damage(r.code, r.severity, r.rank, r.count, r.detail) for r in health)),
        ranks=tables.ranks,
        missing_ranks=missing_ranks(tables),
        work=work_of(tables),
    )


def missing_ranks(tables: TableSet) -> tuple[int, ...]:
    """Return the ranks that belong to the run but were not read."""
    sizes = [int(size) for rank in tables.ranks for size in tables.columns("ranks", rank)["world_size"]]
    world = max(sizes, default=-1)
    if tables.manifest is not None and tables.manifest.coordinates:
        world = max(world, *(int(rank) + 1 for rank in tables.manifest.coordinates))
    return tuple(sorted(set(range(world)) - set(tables.ranks)))


def seen_findings(findings: Iterable[Finding]) -> tuple[SeenFinding, ...]:
    """Return the fields that identify each finding in another run, sorted."""
    return tuple(sorted(_seen_finding(finding) for finding in findings))


def _seen_finding(finding: Finding) -> SeenFinding:
    place = sorted((name, value) for name, value in finding.where.items() if name not in MOMENTS)
    where = " ".join(f"{name}={value}" for name, value in place)
    return SeenFinding(finding.code, finding.level, finding.title, where, finding.gain_fraction)
