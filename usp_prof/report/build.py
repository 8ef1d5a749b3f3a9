"""Build a report: analysis results, values, notes and findings in one document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module

from usp_prof._version import __version__
from usp_prof.analyses import NAMES
from usp_prof.analyses.result import Result, impossible
from usp_prof.analyses.stragglers import StragglersResult
from usp_prof.findings.engine import find_all
from usp_prof.inputs.memory import no_collection
from usp_prof.model.errors import unknown_name
from usp_prof.model.finding import NOTHING_FOUND, Found, repair_values, slowdown_values
from usp_prof.model.metric import sound
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.document import Document
from usp_prof.report.figures import Context, Figures
from usp_prof.report.run_facts import run_facts
from usp_prof.report.sections import sections, summary
from usp_prof.report.verdict import verdict_of
from usp_prof.tables.table_set import TableSet


@no_collection()
def analyze(
    tables: TableSet,
    selection: Selection = EVERYTHING,
    only: Iterable[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Result]:
    """Run the analyses (those in `only`, else all) and return their results by name, in the report's order."""
    wanted = list(only)
    for name in wanted:
        if name not in NAMES:
            raise unknown_name("analysis", name, NAMES)
    results: dict[str, Result] = {}
    for name in NAMES:
        if not wanted or name in wanted:
            progress(name)
            results[name] = import_module(f"usp_prof.analyses.{name}").compute(tables, selection)
    return results


@no_collection()
def build(
    tables: TableSet,
    results: Mapping[str, Result],
    *,
    name: str,
    selection: Selection = EVERYTHING,
    other_runs: Sequence[str] = (),
    search_result: Found | None = None,
    without: Collection[str] = (),
) -> Document:
    """Build the document of one run; without `search_result` the rules run if every analysis did.

    `without` names sections that are not displayed.
    """
    values_of_analysis = {name: result.values() for name, result in results.items()}
    measured = list(values_of_analysis.values())
    notes = {row for result in results.values() for row in result.notes}
    if search_result is None and set(NAMES) <= set(results):
        search_result = find_all(tables, selection)
    search_result = search_result or NOTHING_FOUND
    notes.update(search_result.skipped)
    measured.append(sound([*slowdown_values(search_result.ideal), *repair_values(search_result.repairs)]))
    notes.update(row for of_analysis in measured for row in impossible(of_analysis))
    values = tuple(value for of_analysis in measured for value in of_analysis)
    context = Context(
        run=run_facts(tables, selection, name, other_runs),
        tables=tables,
        selection=selection,
        results=results,
        values=values_of_analysis,
        metrics={value.metric.id: value.metric for value in values},
        figures=Figures(values),
        findings=search_result.findings,
        ideal=search_result.ideal,
        unrecorded_step_ns=search_result.unrecorded_step_ns,
        health=tuple(sorted(notes.union(tables.health))),
    )
    stragglers = results.get("stragglers")
    culprits = stragglers.culprits if isinstance(stragglers, StragglersResult) else ()
    return Document(
        version=__version__,
        run=context.run,
        metrics=context.metrics,
        values=values,
        findings=context.findings,
        health=context.health,
        summary=summary.build(context),
        sections=sections(context, without),
        verdict=verdict_of(context.figures, context.findings, culprits),
    )
