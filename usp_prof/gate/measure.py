"""Measure a run for the gate: values of every analysis, facts, damage, findings and the work of its steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from usp_prof._version import __version__
from usp_prof.analyses import NAMES
from usp_prof.analyses.result import impossible
from usp_prof.findings import slowdown
from usp_prof.gate.facts import facts_of
from usp_prof.gate.measured import Damage, Measured, SeenFinding, Work
from usp_prof.gate.series import from_values, with_derived
from usp_prof.model.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.model.finding import Finding, IdealStep
    from usp_prof.model.metric import Value
    from usp_prof.tables.table_set import TableSet


# Work of a step: ops, kernels and calls by name, shape and place, with their time per step


KEPT = 200
"""So many of each sort are kept, by time; the rest is too small to explain anything."""

_Key = tuple[str, str, str]


def work_of(tables: TableSet) -> tuple[Work, ...]:
    """List the work of a run: mean time and number per step and rank, largest first within each sort."""
    sums: dict[str, dict[_Key, list[float]]] = {"call": {}, "kernel": {}, "op": {}, "host op": {}}
    rank_steps = 0
    for rank in tables.ranks:
        rank_steps += int((tables.columns("steps", rank)["step"] >= 0).sum())
        on_device = len(tables.columns("kernels", rank)) > 0
        _add(sums["host op" if on_device else "op"], _ops(tables.columns("ops", rank)))
        _add(sums["kernel"], _kernels(tables.columns("kernels", rank)))
        _add(sums["call"], _calls(tables.columns("collectives", rank)))
    found: list[Work] = []
    for sort, rows in sums.items():
        listed = [Work(sort, *key, ns / max(rank_steps, 1), n / max(rank_steps, 1)) for key, (ns, n) in rows.items()]
        listed.sort(key=lambda each: (-each.ns_per_step, each.name, each.shape, each.phase))
        found += listed[:KEPT]
    return tuple(found)


def _ops(ops: Columns) -> list[tuple[_Key, float, float]]:
    return _grouped(ops, ("name", "input_dims", "phase"), ops["self_ns"])


def _kernels(kernels: Columns) -> list[tuple[_Key, float, float]]:
    rows = _grouped(kernels, ("name", "op", "kind"), kernels["dur_ns"])
    return [((name, f"of {op}" if op else "", ""), ns, n) for (name, op, _), ns, n in rows]


def _calls(parts: Columns) -> list[tuple[_Key, float, float]]:
    size = np.maximum(parts["in_bytes"], parts["out_bytes"])
    rows = []
    for each in np.unique(size).tolist():
        some = parts.take(size == each)
        shape = f"{each} B" if each >= 0 else ""
        rows += [
            ((f"{axis} {op}", shape, ""), ns, n)
            for (op, axis, _), ns, n in _grouped(some, ("op", "axis", "dtype"), some["dur_ns"])
        ]
    return rows


def _grouped(table: Columns, names: Sequence[str], time: NDArray[np.int64]) -> list[tuple[_Key, float, float]]:
    """Sum the time and the number of the rows inside steps, by three text columns."""
    inside = table["step"] >= 0
    if not inside.any():
        return []
    coded = [table.codes(name) for name in names]
    index = np.zeros(len(table), dtype=np.int64)
    for codes, texts in coded:
        index = index * (len(texts) + 1) + codes
    groups, where = np.unique(index[inside], return_inverse=True)
    first = np.full(len(groups), -1)
    rows = np.flatnonzero(inside)
    first[where[::-1]] = rows[::-1]
    total = np.bincount(where, weights=time[inside].astype(np.float64))
    count = np.bincount(where)
    keys = zip(*([values[code] for code in codes[first].tolist()] for codes, values in coded), strict=True)
    return [((a, b, c), ns, float(n)) for (a, b, c), ns, n in zip(keys, total.tolist(), count.tolist(), strict=True)]


def _add(sums: dict[_Key, list[float]], rows: list[tuple[_Key, float, float]]) -> None:
    for key, ns, number in rows:
        slot = sums.setdefault(key, [0.0, 0.0])
        slot[0] += ns
        slot[1] += number


MOMENTS = ("step",)
"""What of a finding's place is no place: the same trouble comes in another step of every run."""


def measure(
    tables: TableSet,
    label: str,
    *,
    findings: Iterable[Finding] = (),
    analyses: Iterable[str] = NAMES,
    selection: Selection = EVERYTHING,
    ideal: IdealStep | None = None,
) -> Measured:
    """Measure a run by the named analyses; `ideal` is its step with all ranks alike, where it was replayed."""
    values: list[Value] = slowdown.values(ideal)
    health = list(tables.health)
    for name in analyses:
        measured = import_module(f"usp_prof.analyses.{name}").compute(tables, selection).values()
        values += measured
        health += impossible(measured)
    manifest = tables.manifest
    return Measured(
        label=label,
        profiler=__version__,
        created=manifest.created if manifest else "",
        facts=facts_of(tables),
        series=with_derived(from_values(values)),
        findings=seen(findings),
        damage=tuple(sorted(Damage(r.code, r.severity, r.rank, r.count, r.detail) for r in health)),
        ranks=tables.ranks,
        missing_ranks=missing_ranks(tables),
        work=work_of(tables),
    )


def missing_ranks(tables: TableSet) -> tuple[int, ...]:
    """List the ranks that the run had, by its own account, and that were not read."""
    sizes = [int(size) for rank in tables.ranks for size in tables.columns("ranks", rank)["world_size"]]
    world = max(sizes, default=-1)
    if tables.manifest is not None and tables.manifest.coordinates:
        world = max(world, *(int(rank) + 1 for rank in tables.manifest.coordinates))
    return tuple(sorted(set(range(world)) - set(tables.ranks)))


def seen(findings: Iterable[Finding]) -> tuple[SeenFinding, ...]:
    """Keep of each finding what is needed to know it again, sorted."""
    return tuple(sorted(_seen(finding) for finding in findings))


def _seen(finding: Finding) -> SeenFinding:
    place = sorted((name, value) for name, value in finding.where.items() if name not in MOMENTS)
    where = " ".join(f"{name}={value}" for name, value in place)
    return SeenFinding(finding.code, finding.level, finding.title, where, finding.gain_fraction)
