"""Search for findings: rules look, the engine replays their edits and puts them in order.

Gains overlap, so they are never added: each finding also has the gain of all findings up to it, replayed together.
An edit that cannot join those before it is left out of that sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from usp_prof.findings.causes import same_place, with_causes
from usp_prof.findings.draft import all_rules, damage, skipped_rules
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Basis, Finding, Found, Level
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.whatif.attribution import ideal_step
from usp_prof.whatif.edits.kind import MODEL_DOUBT
from usp_prof.whatif.predict import Gain, as_recorded, gain_of, gains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.findings.draft import Draft, Rule
    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Together:
    """The most that each edit and those before it gain, and by its place why one was left out: it adds nothing.

    The gains never fall: an edit that makes the step longer beside the others is one that nobody would make with them.
    """

    gains: tuple[float, ...]
    left_out: dict[int, str]


def together(tables: TableSet, edits: Sequence[Edit], first: float) -> Together:
    """Replay the edits one after the other; `first` is the gain of the first alone, which is known by now."""
    if len(edits) < 2:
        return Together(tuple(first for _ in edits), {})
    made, found = as_recorded(tables).then(tables, edits[0]), [first]
    left_out: dict[int, str] = {}
    for place, edit in enumerate(edits[1:], start=1):
        try:
            joined = made.then(tables, edit)
            gain = gain_of(tables, joined, least=inf)
        except UspProfError as error:
            left_out[place] = error.message
            found.append(found[-1])
        else:
            made = joined
            found.append(max(found[-1], gain.gain_fraction))
    return Together(tuple(found), left_out)


CRITICAL_GAIN = 0.1
"""What must be certain of a gain, in fractions of the step, for a finding to be critical."""


def search(tables: TableSet, selection: Selection = EVERYTHING, doubt: float = 0.0) -> Found:
    """Ask every rule and predict what each finding is worth; findings of ranks outside the selection are left out.

    `doubt` is the share of the step by which every gain may be further off than its prediction says.
    """
    drafts: list[tuple[Rule, Draft]] = []
    failed: dict[str, str] = {}
    for each in all_rules():
        if reason := damage(tables, getattr(each, "NEEDS", ())):
            failed[each.CODE] = reason
            continue
        try:
            for draft in each.look(tables):
                drafts.append((each, draft))  # noqa: PERF401 - those before an error count
        except UspProfError as error:
            failed[each.CODE] = error.message
    judged: list[tuple[Rule, Draft, Gain]] = []
    refused: set[str] = set()
    edits, least = [draft.edit for _, draft in drafts], [draft.least_gain for _, draft in drafts]
    for (each, draft), gain in zip(drafts, gains(tables, edits, least), strict=True):
        if each.CODE in refused:
            continue
        if isinstance(gain, UspProfError):
            refused.add(each.CODE)
            failed[each.CODE] = gain.message
        elif _counts(draft, gain, selection):
            judged.append((each, draft, _as_known(draft, gain, doubt)))
    judged = _in_order(judged)
    edits = [draft.edit for _, draft, _ in judged]
    joined = together(tables, edits, judged[0][2].gain_fraction if judged else 0.0)
    findings = with_causes([_finding(*item, gain) for item, gain in zip(judged, joined.gains, strict=True)])
    skipped = skipped_rules(failed)
    skipped += [_apart(judged[place][0].CODE, reason) for place, reason in joined.left_out.items()]
    ideal = ideal_step(tables) if len(tables.ranks) > 1 else None
    if ideal is not None:
        ideal = replace(ideal, error_fraction=ideal.error_fraction + doubt)
    return Found(tuple(findings), tuple(sorted(skipped)), ideal)


def _in_order(judged: Sequence[tuple[Rule, Draft, Gain]]) -> list[tuple[Rule, Draft, Gain]]:
    """Put what is wrong before what could be chosen otherwise, and what is within the noise last.

    Among these, findings come by what is certain of their gain: the gain less its error. One that covers others comes
    by what it adds to those of the same place.
    """

    def weight(item: tuple[Rule, Draft, Gain]) -> float:
        place, codes = item[1].where, item[1].covers
        covered = [
            _certain(gain) for each, draft, gain in judged if each.CODE in codes and same_place(place, draft.where)
        ]
        return _certain(item[2]) - max([0.0, *covered])

    def key(item: tuple[Rule, Draft, Gain]) -> tuple[bool, bool, float, str, str]:
        each, draft, gain = item
        return _certain(gain) <= 0, draft.opportunity, -weight(item), each.CODE, str(draft.edit)

    return sorted(judged, key=key)


def _as_known(draft: Draft, gain: Gain, doubt: float) -> Gain:
    """Doubt a gain as its rule does: where a rule says by how much its edit speeds something up, that is a model."""
    gain = replace(gain, error_fraction=gain.error_fraction + doubt)
    if draft.basis is None:
        return gain
    modelled = MODEL_DOUBT * abs(gain.gain_fraction) if draft.basis is Basis.MODELLED else 0.0
    return replace(gain, basis=draft.basis, error_fraction=max(gain.error_fraction, modelled))


def _certain(gain: Gain) -> float:
    return gain.gain_fraction - gain.error_fraction


def _counts(draft: Draft, gain: Gain, selection: Selection) -> bool:
    return gain.gain_fraction >= draft.least_gain and _selected(draft, selection)


def _finding(each: Rule, draft: Draft, gain: Gain, cumulative: float) -> Finding:
    level = Level.CRITICAL if _certain(gain) >= CRITICAL_GAIN else Level.WARNING
    return Finding(
        code=each.CODE,
        title=draft.title,
        where=draft.where,
        evidence=draft.evidence,
        edit=str(draft.edit),
        gain_fraction=gain.gain_fraction,
        cumulative_gain_fraction=cumulative,
        basis=gain.basis,
        error_fraction=gain.error_fraction,
        level=Level.NOTE if draft.opportunity or _certain(gain) <= 0 else level,
        advice=draft.advice,
        settings=draft.settings,
        rows=draft.rows,
        is_choice=draft.opportunity or draft.is_choice,
    )


def _apart(code: str, reason: str) -> HealthRow:
    detail = f"{code} adds nothing to the gain of all, its change cannot be made with those before it: {reason}"
    return HealthRow("edits_apart", Severity.INFO, detail=detail)


def _selected(draft: Draft, selection: Selection) -> bool:
    rank = draft.where.get("rank")
    return selection.ranks is None or not isinstance(rank, int) or rank in selection.ranks
