"""Search for findings: run all rules, replay their edits and rank the results.

Gains overlap, so they are never added. Instead, each finding has a cumulative gain from a replay with all findings up
to it. An edit that cannot be combined with those before it is left out of the cumulative gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from usp_prof.analyses.step_time import is_window
from usp_prof.findings.causes import same_place, with_causes
from usp_prof.findings.changed_parts import with_changed_parts
from usp_prof.findings.draft import Draft, Rule, damage, skipped_rules
from usp_prof.findings.place import of_costly_rank
from usp_prof.findings.registry import all_rules
from usp_prof.findings.repairs import ideal_of, repairs_of, unexplained_notes
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Basis, Finding, Found, Level
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.replay.graph import Graph, Timeline
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.replay.step_times import graphs_per_pass, timeline_of, unedited
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.attribution import IDEAL, ideal_step, why_no_ideal
from usp_prof.whatif.edited import Edited, as_recorded
from usp_prof.whatif.edits.kind import MODEL_DOUBT
from usp_prof.whatif.predict import Gain, gain_of, replayed_alone
from usp_prof.whatif.recording_cost import recording_cost

CRITICAL_GAIN = 0.1
"""Minimum certain gain of a critical finding, as a fraction of the step."""
FIRST_GAIN = 0.02
"""Findings with a smaller certain gain, as a fraction of the step, are sorted after those with a larger one."""


@dataclass(frozen=True, slots=True)
class Together:
    """Cumulative gain of each edit with all edits before it, and by index the reason why an edit was excluded.

    The gains never decrease: an edit that makes the step longer together with the others is not applied with them.
    """

    gains: tuple[float, ...]
    left_out: dict[int, str]


def together(tables: TableSet, edits: Sequence[Edit], first: float) -> Together:
    """Return the cumulative gains of the edits; `first` is the known gain of the first edit alone."""
    if len(edits) < 2:
        return Together(tuple(first for _ in edits), {})
    edited_run, gains = as_recorded(tables).then(tables, edits[0]), [first]
    left_out: dict[int, str] = {}
    replayed: tuple[Graph, Timeline] | None = None  # edits of the action order leave the graph as it is
    for place, edit in enumerate(edits[1:], start=1):
        try:
            combined = edited_run.then(tables, edit)
            if replayed is None or replayed[0] is not combined.graph:
                replayed = combined.graph, timeline_of(tables, combined.graph)
            gain = gain_of(tables, combined, least=inf, timeline=replayed[1])
        except UspProfError as error:
            left_out[place] = error.message
            gains.append(gains[-1])
        else:
            edited_run = combined
            gains.append(max(gains[-1], gain.gain_fraction))
    return Together(tuple(gains), left_out)


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft of a rule, and the gain of its change."""

    rule: Rule
    draft: Draft
    gain: Gain
    replayed: tuple[Edited, Timeline] | None = None
    """The replay of the change; `None` if it would take too much memory to keep it."""

    @property
    def certain(self) -> float:
        """Certain gain: the gain minus its error; 0 or less means within the noise."""
        return self.gain.gain_fraction - self.gain.error_fraction


def search(tables: TableSet, selection: Selection = EVERYTHING, doubt: float = 0.0) -> Found:
    """Run every rule and predict the gain of each finding; findings of ranks outside the selection are excluded.

    1. Each rule returns drafts. A rule with damaged input, or one that fails, is skipped with the reason.
    2. Each draft's edit is replayed alone; drafts below their least gain are dropped. A draft on all ranks whose cost
       is that of one rank is narrowed down to it.
    3. The other drafts are sorted and replayed together: the first, the first two, and so on.
    4. Drafts that add almost nothing to an earlier one at the same place become part of it (`causes.py`).

    `doubt` is an additional error of every gain, as a share of the step.
    """
    skipped: dict[str, str] = {}
    drafts = _drafts(tables, skipped)
    judged = _in_order(_judged(tables, drafts, selection, doubt, skipped))
    cumulative = together(
        tables, [judgment.draft.edit for judgment in judged], judged[0].gain.gain_fraction if judged else 0.0
    )
    findings = with_causes(
        [_finding(judgment, gain) for judgment, gain in zip(judged, cumulative.gains, strict=True)],
        {judgment.rule.CODE: judgment.draft.covers for judgment in judged},
    )
    unrecorded_ns = _unrecorded_step_ns(tables)
    span = "window" if all(is_window(tables, rank) for rank in tables.ranks) else "step"
    findings = [replace(finding, span=span, without_recording=unrecorded_ns > 0) for finding in findings]
    if selection == EVERYTHING and not doubt:  # otherwise the step breakdown shows other steps or ranks
        replays = {str(judgment.draft.edit): judgment.replayed for judgment in judged if judgment.replayed}
        findings = with_changed_parts(tables, findings, replays)
    notes = skipped_rules(skipped) + _recording_notes(tables) + _clock_notes(tables)
    notes += unexplained_notes(tables)
    notes += [_excluded(judged[place].rule.CODE, reason) for place, reason in cumulative.left_out.items()]
    ideal = ideal_of(tables)
    if ideal is not None:
        ideal = replace(ideal, error_fraction=ideal.error_fraction + doubt)
    return Found(tuple(findings), tuple(sorted(notes)), ideal, repairs_of(tables), unrecorded_ns)


def _recording_notes(tables: TableSet) -> list[HealthRow]:
    """Return health rows on the known or possible cost of recording."""
    cost, step_ns = recording_cost(tables), unedited(tables).mean_measured_ns
    if not cost.matters(step_ns):
        return []
    cost_ms, share = f"{cost.ns / 1e6:.3g} ms", f"{100 * cost.ns / step_ns:.0f}%"
    if cost.is_known:
        detail = f"recording adds {cost_ms} ({share}) to a step of {step_ns / 1e6:.3g} ms; gains exclude this cost"
        return [HealthRow("recording_cost", Severity.INFO, detail=detail)]
    detail = (
        f"recording may add up to {cost_ms} ({share}) to a step, and gains may be off by this amount; record with "
        "usp_prof.record and wait=5, which measures the cost, or with level='light', which costs little"
    )
    return [HealthRow("recording_cost_unknown", Severity.INFO, detail=detail)]


def _clock_notes(tables: TableSet) -> list[HealthRow]:
    """Return a health row on timestamps of hosts and devices that contradict launches, syncs and collectives."""
    clocks = rank_clocks(tables)
    largest = {rank: max(abs(clocks.host_ns.get(rank, 0)), abs(clocks.device_ns.get(rank, 0))) for rank in tables.ranks}
    moved = [rank for rank, offset in largest.items() if offset]
    if not moved:
        return []
    detail = (
        f"host and device timestamps of rank {first_few(moved, 8, ', ...')} contradict each other by up to "
        f"{max(largest.values()) / 1e3:.0f} us; the replay shifts them so that each launch comes before its kernel"
    )
    return [HealthRow("device_clock_offset", Severity.INFO, count=len(moved), detail=detail)]


def _drafts(tables: TableSet, skipped: dict[str, str]) -> list[tuple[Rule, Draft]]:
    """Return the drafts of all rules; reasons of skipped rules are added to `skipped` by code."""
    drafts: list[tuple[Rule, Draft]] = []
    for rule in all_rules():
        if reason := damage(tables, getattr(rule, "NEEDS", ())):
            skipped[rule.CODE] = reason
            continue
        try:
            for draft in rule.look(tables):
                drafts.append((rule, draft))  # noqa: PERF401 - drafts before an error are kept
        except UspProfError as error:
            skipped[rule.CODE] = error.message
    return drafts


def _judged(
    tables: TableSet, drafts: Sequence[tuple[Rule, Draft]], selection: Selection, doubt: float, skipped: dict[str, str]
) -> list[Judged]:
    """Return drafts with the gain of each replayed alone; rules with an impossible edit are added to `skipped`."""
    judged: list[Judged] = []
    refused: set[str] = set()
    doubtful = {f"rank_as_peers={repair.rank}" for repair in repairs_of(tables) if repair.disagrees}
    certain = [(rule, draft) for rule, draft in drafts if str(draft.edit) not in doubtful]
    has_ideal = len(tables.ranks) > 1 and not why_no_ideal(tables)
    # The ideal step is replayed in the same pass.
    replays = replayed_alone(tables, [*(draft.edit for _, draft in certain), *([IDEAL] if has_ideal else [])])
    for (rule, draft), replayed in zip(certain, replays, strict=False):
        if rule.CODE in refused:
            continue
        try:
            if isinstance(replayed, UspProfError):
                raise replayed
            edited_run, timeline = replayed
            gain = gain_of(tables, edited_run, draft.least_gain, timeline)
            narrower = of_costly_rank(tables, draft, gain.gain_fraction)
            if narrower is not None:
                draft = narrower  # noqa: PLW2901 - it takes the place of the draft of all ranks
                edited_run = as_recorded(tables).then(tables, draft.edit)
                timeline = timeline_of(tables, edited_run.graph)
                gain = gain_of(tables, edited_run, draft.least_gain, timeline)
        except UspProfError as error:
            refused.add(rule.CODE)
            skipped[rule.CODE] = error.message
            continue
        if gain.gain_fraction >= draft.least_gain and _is_selected(draft, selection):
            is_small = len(judged) < graphs_per_pass(tables)
            judged.append(
                Judged(rule, draft, _as_known(draft, gain, doubt), (edited_run, timeline) if is_small else None)
            )
    for ideal in replays:
        ideal_step(tables, None if isinstance(ideal, UspProfError) else ideal)
    return judged


def _in_order(judged: Sequence[Judged]) -> list[Judged]:
    """Return findings sorted: certain gains of at least FIRST_GAIN, then smaller ones, then those within the noise.

    Within each of these, problems come before alternative choices, then the largest certain gain first. A finding that
    covers others is ranked by what it adds to those with the same location.
    """

    def adds(candidate: Judged) -> float:
        place, codes = candidate.draft.where, candidate.draft.covers
        covered = [
            other.certain for other in judged if other.rule.CODE in codes and same_place(place, other.draft.where)
        ]
        return candidate.certain - max([0.0, *covered])

    def key(candidate: Judged) -> tuple[bool, bool, bool, float, str, str]:
        certain, draft = candidate.certain, candidate.draft
        is_small = certain < FIRST_GAIN
        return certain <= 0, is_small, draft.opportunity, -adds(candidate), candidate.rule.CODE, str(draft.edit)

    return sorted(judged, key=key)


def _as_known(draft: Draft, gain: Gain, doubt: float) -> Gain:
    """Return the gain with the basis and error of its rule; a speedup factor set by the rule is a model."""
    gain = replace(gain, error_fraction=gain.error_fraction + doubt)
    if draft.basis is None:
        return gain
    modelled = MODEL_DOUBT * abs(gain.gain_fraction) if draft.basis is Basis.MODELLED else 0.0
    return replace(gain, basis=draft.basis, error_fraction=max(gain.error_fraction, modelled))


def _is_selected(draft: Draft, selection: Selection) -> bool:
    rank = draft.where.get("rank")
    return selection.ranks is None or not isinstance(rank, int) or rank in selection.ranks


def _unrecorded_step_ns(tables: TableSet) -> float:
    cost, step_ns = recording_cost(tables), unedited(tables).mean_measured_ns
    return step_ns - cost.ns if cost.is_known and cost.matters(step_ns) else 0.0


def _finding(judged: Judged, cumulative: float) -> Finding:
    draft, gain = judged.draft, judged.gain
    level = Level.CRITICAL if judged.certain >= CRITICAL_GAIN else Level.WARNING
    return Finding(
        code=judged.rule.CODE,
        title=draft.title,
        where=draft.where,
        evidence=draft.evidence,
        edit=str(draft.edit),
        gain_fraction=gain.gain_fraction,
        cumulative_gain_fraction=cumulative,
        basis=gain.basis,
        error_fraction=gain.error_fraction,
        level=Level.NOTE if draft.opportunity or judged.certain <= 0 else level,
        advice=draft.advice,
        settings=draft.settings,
        rows=draft.rows,
        is_choice=draft.opportunity or draft.is_choice,
        step_ns=gain.step_ns,
    )


def _excluded(code: str, reason: str) -> HealthRow:
    detail = f"the combined gain excludes {code}: its change cannot be combined with those above it: {reason}"
    return HealthRow("edits_apart", Severity.INFO, detail=detail)
