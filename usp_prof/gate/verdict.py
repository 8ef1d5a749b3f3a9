"""Verdict of a whole check: what was compared, what was not, and the conclusion from all judgments."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from shlex import quote

from usp_prof.gate.facts import BARRED, Difference, FactKind, barred, differences
from usp_prof.gate.judge import FEWEST_STEPS, SIGN, judge, judge_bounds
from usp_prof.gate.judgment import Judgment, Verdict, unjudged
from usp_prof.gate.measured import Baseline, Measured, SeenFinding
from usp_prof.gate.policy import STEP_FAMILY, Policy, fits
from usp_prof.gate.sample import Noise, noise_of
from usp_prof.gate.series import RATES, STEP_TIME, WINDOW_TIME, Series
from usp_prof.gate.why import EMPTY_WHY, Why, explain, new_findings
from usp_prof.model.health import Severity
from usp_prof.model.metric import Better, Unit
from usp_prof.model.printable import first_and_more

# Input that prevents a verdict: missing ranks and damage, in sentences; empty if the runs can be judged


_LISTED = 8


def unusable_input(
    before: Sequence[Measured], after: Measured, least: Severity, differing: Sequence[Difference]
) -> tuple[str, ...]:
    """Return the reasons that prevent a verdict: damage at or above `least`, and ranks that only one side has.

    A run recorded on some ranks only is judged against a baseline of the same ranks.
    """
    reasons = _ranks(before, after, differing)
    order = list(Severity)
    for side, run in [*(("baseline", run) for run in before), ("run", after)]:
        for damage in run.damage:
            if order.index(damage.severity) >= order.index(least):
                rank = f" of rank {damage.rank}" if damage.rank >= 0 else ""
                reasons.append(f"{side} {run.label}: {damage.code}{rank}: {damage.detail}".rstrip(": "))
    return tuple(dict.fromkeys(reasons))


def _ranks(before: Sequence[Measured], after: Measured, differing: Sequence[Difference]) -> list[str]:
    if not before:
        return _lost(f"run {after.label}", after.missing_ranks)
    reasons = []
    if any(
        difference.kind is FactKind.LAYOUT and difference.name == "world size" and difference.is_in_both
        for difference in differing
    ):
        for run in before:
            reasons += _lost(f"baseline {run.label}", run.missing_ranks)
        return reasons + _lost(f"run {after.label}", after.missing_ranks)
    for run in before:
        reasons += _lost(f"run {after.label}", set(run.ranks) - set(after.ranks))
        reasons += _lost(f"baseline {run.label}", set(after.ranks) - set(run.ranks))
    return reasons


def _lost(side: str, ranks: Collection[int]) -> list[str]:
    if not ranks:
        return []
    return [f"{side}: rank{'s' if len(ranks) > 1 else ''} {first_and_more(sorted(ranks), _LISTED)} missing"]


class Inconclusive(StrEnum):
    """What an inconclusive check does. By default noise only warns, and input that cannot be judged exits with 2."""

    DEFAULT = "default"
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Report:
    """A whole check. `unusable` lists why there is no verdict; `new_findings` are the new findings that count."""

    verdict: Verdict
    judgements: tuple[Judgment, ...]
    """A key of the JSON output, which keeps its spelling."""
    differences: tuple[Difference, ...]
    unusable: tuple[str, ...]
    new_findings: tuple[SeenFinding, ...]
    why: Why
    before: str
    after: str
    baseline_runs: int
    inconclusive: Inconclusive = Inconclusive.DEFAULT
    unanswered: tuple[str, ...] = ()
    """Requests that could not be judged, although the rest could."""
    baseline_file: str = ""

    @property
    def is_comparable(self) -> bool:
        """Whether any metric could be compared with the baseline."""
        return any(judgment.verdict is not Verdict.NOT_COMPARED for judgment in self.judgements)

    @property
    def ratchet(self) -> str:
        """The command that saves an improvement as the baseline; empty if there is none, or if something regressed."""
        if self.unusable or self.verdict is Verdict.REGRESSED or not self.with_verdict(Verdict.IMPROVED):
            return ""
        return f"usp-prof baseline save {quote(self.after)} -o {quote(self.baseline_file or 'baseline.json')}"

    @property
    def exit_code(self) -> int:
        """Exit code: 0 clean, 1 regressed, 2 cannot be judged; `inconclusive` changes the last two."""
        if self.verdict is Verdict.REGRESSED:
            return 1
        if self.verdict is not Verdict.INCONCLUSIVE or self.inconclusive is Inconclusive.WARN:
            return 0
        if self.inconclusive is Inconclusive.FAIL:
            return 1
        return 2 if self.unusable or self.unanswered else 0

    def with_verdict(self, verdict: Verdict) -> tuple[Judgment, ...]:
        """Return the judgments with one verdict."""
        return tuple(judgment for judgment in self.judgements if judgment.verdict is verdict)


def check(
    baseline: Baseline | None, after: Measured, policy: Policy, inconclusive: Inconclusive = Inconclusive.DEFAULT
) -> Report:
    """Check a run against a baseline; without one, only against the policy's absolute bounds."""
    runs = baseline.runs if baseline is not None else ()
    last = runs[-1] if runs else None
    differing = differences(last.facts, after.facts) if last else ()
    noise = noise_of((*runs, after), policy.noise)
    judgments = _compared(runs, after, policy, differing, noise) + judge_bounds(after, policy)
    fresh: tuple[SeenFinding, ...] = ()
    changes_machine = any(difference.kind is FactKind.HARDWARE and difference.is_in_both for difference in differing)
    if runs and not changes_machine:
        fresh, unsure = new_findings(runs, after, policy, noise)
        judgments += unsure
    unusable = unusable_input(runs, after, policy.health, differing)
    if unusable:
        judgments = tuple(_in_doubt(judgment) for judgment in judgments)
    elif all(judgment.verdict is Verdict.NOT_COMPARED for judgment in judgments):
        unusable = (_nothing_compared(differing, policy.across),)
    unanswered = () if unusable else _unanswered(judgments, policy, no_steps_in(runs, after))
    verdict = _overall(judgments, fresh, unusable, unanswered)
    why = explain(last, after) if last and verdict is not Verdict.PASS else EMPTY_WHY
    before = last.label if last else ""
    if last is None:  # nothing to compare with: report only the bounds
        judgments = tuple(judgment for judgment in judgments if judgment.verdict is not Verdict.NOT_COMPARED)
    return Report(
        verdict, judgments, differing, unusable, fresh, why, before, after.label, len(runs), inconclusive, unanswered
    )


def _nothing_compared(differing: Sequence[Difference], across: Sequence[FactKind]) -> str:
    """Return why no metric was compared: the kinds of conditions that differ, or no common metric."""
    kinds = dict.fromkeys(str(bar.kind) for unit in Unit if (bar := barred(unit, differing, across)) is not None)
    if not kinds:
        return "nothing could be compared: the runs have no comparable metric in common"
    return f"nothing could be compared: {' and '.join(kinds)} differ{'' if len(kinds) > 1 else 's'}"


def _compared(
    runs: Sequence[Measured], after: Measured, policy: Policy, differing: Sequence[Difference], noise: Noise
) -> tuple[Judgment, ...]:
    no_steps = no_steps_in(runs, after)
    olds = [run.by_key() for run in runs]
    news = after.by_key()
    keys = sorted(set(news).union(*olds))
    families: dict[str, str] = {}
    judged: dict[str, tuple[list[Series], Series]] = {}
    done: dict[str, Judgment] = {}
    for key in keys:
        series = news.get(key) or next(old[key] for old in olds if key in old)
        rule = policy.rule(series)
        if rule is None:
            continue
        before = [old[key] for old in olds if key in old]
        bar = barred(series.unit, differing, policy.across)
        if bar is not None:
            done[key] = unjudged(series, Verdict.NOT_COMPARED, f"{BARRED}{bar}")
        elif no_steps and series.metric in PER_STEP:
            done[key] = unjudged(series, Verdict.NOT_COMPARED, no_steps)
        elif not before:
            verdict = Verdict.INCONCLUSIVE if key == STEP_TIME and runs else Verdict.NOT_COMPARED
            done[key] = unjudged(series, verdict, "the baseline does not have it")
        elif key not in news:
            layout = any(difference.kind in (FactKind.LAYOUT, FactKind.WORK) for difference in differing)
            verdict = Verdict.NOT_COMPARED if layout else Verdict.INCONCLUSIVE
            done[key] = unjudged(series, verdict, "measured in the baseline, but not in this run")
        else:
            judged[key] = (before, series)
            families[key] = rule.family or key
    if no_steps and STEP_TIME not in done and judged:
        done[STEP_TIME] = Judgment(STEP_TIME, "A step", Unit.NS, Better.LOWER, Verdict.NOT_COMPARED, no_steps)
    tails = _tails(families, policy.false_alarm)
    for key, (before, series) in judged.items():
        rule = policy.rule(series)
        if rule is not None:
            done[key] = judge(before, series, rule, tails[families[key]], noise)
    return tuple(done[key] for key in sorted(done))


PER_STEP = (STEP_TIME, *RATES)
"""Metrics per step, which a recorded window without known steps does not have."""


def no_steps_in(runs: Sequence[Measured], after: Measured) -> str:
    """Return which runs lack steps, so that figures per step cannot be compared; empty if all runs have steps."""
    windows = [run.label for run in (*runs, after) if _is_window(run)]
    if not windows:
        return ""
    return f"not comparable: the steps of {', '.join(dict.fromkeys(windows))} are unknown, only the recorded window is"


def _is_window(run: Measured) -> bool:
    keys = run.by_key()
    return WINDOW_TIME in keys and STEP_TIME not in keys


def _tails(families: dict[str, str], false_alarm: float) -> dict[str, float]:
    """Split the alarm budget of the check: half for the step itself, the rest evenly among the other families."""
    names = set(families.values())
    n_others = max(len(names - {STEP_FAMILY}), 1)
    rest = false_alarm / 2 if STEP_FAMILY in names else false_alarm
    return {name: false_alarm / 2 if name == STEP_FAMILY else rest / n_others for name in names}


def _unanswered(judgments: Sequence[Judgment], policy: Policy, no_steps: str) -> tuple[str, ...]:
    """Return the requests of the command line, and the step itself, that could not be judged at all."""
    unjudged = [judgment for judgment in judgments if math.isnan(judgment.change)]
    judged = [judgment.key for judgment in judgments if not math.isnan(judgment.change)]
    inconclusive = [judgment for judgment in judgments if judgment.verdict is Verdict.INCONCLUSIVE]
    # Order: the step itself, bounds without a value, bounds that too few steps leave open.
    reasons = [
        (judgment.key, judgment.reason)
        for judgment in inconclusive
        if judgment.key == STEP_TIME and math.isnan(judgment.change) and judgment.more_steps == 0
    ]
    reasons += [(STEP_TIME, no_steps)] if no_steps else []
    reasons += [(judgment.key, judgment.reason) for judgment in unjudged if SIGN in judgment.key]
    reasons += [
        (judgment.key, judgment.reason)
        for judgment in inconclusive
        if SIGN in judgment.key and 0 < judgment.steps < FEWEST_STEPS
    ]
    for name in policy.requested:
        if not any(fits(name, key) for key in judged):
            reason = next(
                (judgment.reason for judgment in unjudged if fits(name, judgment.key)), "no such value in either run"
            )
            reasons.append((name, reason))
    return tuple(dict.fromkeys(f"{name}: {reason}" for name, reason in reasons))


def _in_doubt(judgment: Judgment) -> Judgment:
    """Replace a verdict that was based on damaged input by an inconclusive one."""
    if judgment.verdict in (Verdict.NOT_COMPARED, Verdict.INCONCLUSIVE):
        return judgment
    return replace(judgment, verdict=Verdict.INCONCLUSIVE, reason="the input is damaged, see above", more_steps=0)


def _overall(
    judgments: Sequence[Judgment], fresh: Sequence[SeenFinding], unusable: Sequence[str], unanswered: Sequence[str]
) -> Verdict:
    verdicts = {judgment.verdict for judgment in judgments}
    if unusable:
        return Verdict.INCONCLUSIVE
    if Verdict.REGRESSED in verdicts or fresh:
        return Verdict.REGRESSED
    if Verdict.INCONCLUSIVE in verdicts or unanswered:
        return Verdict.INCONCLUSIVE
    return Verdict.IMPROVED if Verdict.IMPROVED in verdicts else Verdict.PASS
