"""What is wrong, and what is each thing worth? Rules look, the engine replays their edits and puts them in order.

Gains overlap, so they are never added: each finding also has the gain of all findings up to it, replayed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from usp_prof.findings.rules import NAMES
from usp_prof.model.errors import UspProfError, unknown_name
from usp_prof.model.finding import Finding, Level
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.findings.draft import Draft, Rule
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.predict import Prediction

CRITICAL_GAIN = 0.1
GROUP = "usp_prof.rules"
"""Entry points of this group are rules of one's own: modules with `CODE`, `TITLE`, a docstring and `look`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The findings, most important first, and which rules could not be asked."""

    findings: tuple[Finding, ...]
    skipped: tuple[HealthRow, ...]


def all_rules() -> tuple[Rule, ...]:
    """Give all rules: ours in the order of their list, then those of others by name."""
    ours = [import_module(f"usp_prof.findings.rules.{name}") for name in NAMES]
    others = [point.load() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]
    return (*ours, *others)


def rule(code: str) -> Rule:
    """Give one rule by its code."""
    known = {each.CODE: each for each in all_rules()}
    if code not in known:
        raise unknown_name("finding", code, known)
    return known[code]


def find_all(tables: TableSet, selection: Selection = EVERYTHING) -> Found:
    """Ask every rule and predict what each finding is worth; findings of ranks outside the selection are left out."""
    if not _has_steps(tables):
        detail = "no step is marked: what a change is worth cannot be said in shares of a step"
        return Found((), (HealthRow("rules_skipped", Severity.INFO, detail=detail),))
    judged: list[tuple[Rule, Draft, Prediction]] = []
    skipped = []
    for each in all_rules():
        try:
            for draft in each.look(tables):
                prediction = predict(tables, [draft.edit])
                if prediction.gain_fraction >= draft.least_gain and _selected(draft, selection):
                    judged.append((each, draft, prediction))
        except UspProfError as error:
            skipped.append(HealthRow("rule_skipped", Severity.INFO, detail=f"{each.CODE}: {error.message}"))
    judged.sort(key=lambda item: (item[1].opportunity, -item[2].gain_fraction, item[0].CODE, str(item[1].edit)))
    findings = []
    for place, (each, draft, prediction) in enumerate(judged):
        together = predict(tables, [item[1].edit for item in judged[: place + 1]]) if place else prediction
        findings.append(_finding(each, draft, prediction, together.gain_fraction))
    return Found(tuple(findings), tuple(sorted(skipped)))


def find(tables: TableSet, selection: Selection = EVERYTHING) -> list[Finding]:
    """Give the findings, most important first: what is wrong before what could be chosen otherwise, then by gain."""
    found: Found = tables.memo(("findings", selection), lambda: find_all(tables, selection))
    return list(found.findings)


def _finding(each: Rule, draft: Draft, prediction: Prediction, together: float) -> Finding:
    level = Level.CRITICAL if prediction.gain_fraction >= CRITICAL_GAIN else Level.WARNING
    return Finding(
        code=each.CODE,
        title=draft.title,
        where=draft.where,
        evidence=draft.evidence,
        edit=str(draft.edit),
        gain_fraction=prediction.gain_fraction,
        cumulative_gain_fraction=together,
        basis=draft.basis or prediction.basis,
        error_fraction=prediction.error_fraction,
        level=Level.NOTE if draft.opportunity else level,
        advice=draft.advice,
        settings=draft.settings,
    )


def _has_steps(tables: TableSet) -> bool:
    sources = {source for rank in tables.ranks for source in tables.columns("steps", rank).codes("source")[1]}
    return bool(sources - {"window"})


def _selected(draft: Draft, selection: Selection) -> bool:
    rank = draft.where.get("rank")
    return selection.ranks is None or not isinstance(rank, int) or rank in selection.ranks
