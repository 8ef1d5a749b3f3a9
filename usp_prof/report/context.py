"""Context of a section: tables, results of the analyses, and their values by dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.analyses.result import Result
    from usp_prof.model.finding import Finding, IdealStep
    from usp_prof.model.health import HealthRow
    from usp_prof.model.metric import Metric
    from usp_prof.model.selection import Selection
    from usp_prof.report.document import RunFacts
    from usp_prof.report.figures import Figures
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that is known of a run when its report is put together."""

    run: RunFacts
    tables: TableSet
    selection: Selection
    results: Mapping[str, Result]
    metrics: Mapping[str, Metric]
    figures: Figures
    findings: tuple[Finding, ...]
    ideal: IdealStep | None
    """The step with all ranks alike, where findings were looked for."""
    health: tuple[HealthRow, ...]
