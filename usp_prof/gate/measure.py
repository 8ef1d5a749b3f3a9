"""How is a run measured for the gate? Every analysis' values, the facts, the damage and the work of its steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from usp_prof._version import __version__
from usp_prof.analyses import NAMES
from usp_prof.gate.circumstances import facts_of
from usp_prof.gate.derived import with_derived
from usp_prof.gate.measured import Damage, Measured, SeenFinding
from usp_prof.gate.series import from_values
from usp_prof.gate.work import work_of
from usp_prof.model.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.model.finding import Finding
    from usp_prof.model.metric import Value
    from usp_prof.tables.table_set import TableSet

MOMENTS = ("step",)
"""What of a finding's place is no place: the same trouble comes in another step of every run."""


def measure(
    tables: TableSet,
    label: str,
    *,
    findings: Iterable[Finding] = (),
    analyses: Iterable[str] = NAMES,
    selection: Selection = EVERYTHING,
) -> Measured:
    """Measure a run by the named analyses."""
    values: list[Value] = []
    for name in analyses:
        values += import_module(f"usp_prof.analyses.{name}").compute(tables, selection).values()
    manifest = tables.manifest
    return Measured(
        label=label,
        profiler=__version__,
        created=manifest.created if manifest else "",
        facts=facts_of(tables),
        series=with_derived(from_values(values)),
        findings=seen(findings),
        damage=tuple(sorted(Damage(r.code, r.severity, r.rank, r.count, r.detail) for r in tables.health)),
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
