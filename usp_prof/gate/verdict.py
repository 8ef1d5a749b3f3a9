"""Did it get slower? All judgements of a check put together: what was compared, what was not, and what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING

from usp_prof.gate.bounds import SIGN, judge_bounds
from usp_prof.gate.derived import STEP_TIME
from usp_prof.gate.facts import Difference, FactKind, barred, differences
from usp_prof.gate.judge import judge
from usp_prof.gate.judgement import Judgement, Verdict
from usp_prof.gate.new_findings import new_findings
from usp_prof.gate.noise import noise_of
from usp_prof.gate.policy import STEP_FAMILY, Policy, fits
from usp_prof.gate.usable import unusable_input
from usp_prof.gate.why import EMPTY_WHY, Why, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.baseline import Baseline
    from usp_prof.gate.measured import Measured, SeenFinding
    from usp_prof.gate.noise import Noise
    from usp_prof.gate.series import Series


class Inconclusive(StrEnum):
    """What an inconclusive check does. By default noise only warns, and input that cannot be judged exits with 2."""

    DEFAULT = "default"
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Report:
    """A whole check. `unusable` says why nothing can be said at all; `new_findings` are those that count."""

    verdict: Verdict
    judgements: tuple[Judgement, ...]
    differences: tuple[Difference, ...]
    unusable: tuple[str, ...]
    new_findings: tuple[SeenFinding, ...]
    why: Why
    before: str
    after: str
    baseline_runs: int
    inconclusive: Inconclusive = Inconclusive.DEFAULT
    unanswered: tuple[str, ...] = ()
    """What was asked for and could not be judged, although the rest could."""
    baseline_file: str = ""

    @property
    def ratchet(self) -> str:
        """Say how to keep an improvement; nothing where there is none, or something got worse."""
        if self.unusable or self.verdict is Verdict.REGRESSED or not self.of(Verdict.IMPROVED):
            return ""
        return f"usp-prof baseline save {quote(self.after)} -o {quote(self.baseline_file or 'baseline.json')}"

    @property
    def exit_code(self) -> int:
        """0 clean, 1 regressed, 2 cannot be judged; `inconclusive` moves the last two."""
        if self.verdict is Verdict.REGRESSED:
            return 1
        if self.verdict is not Verdict.INCONCLUSIVE or self.inconclusive is Inconclusive.WARN:
            return 0
        if self.inconclusive is Inconclusive.FAIL:
            return 1
        return 2 if self.unusable or self.unanswered else 0

    def of(self, verdict: Verdict) -> tuple[Judgement, ...]:
        """Give the judgements with one verdict."""
        return tuple(each for each in self.judgements if each.verdict is verdict)


def check(
    baseline: Baseline | None, after: Measured, policy: Policy, inconclusive: Inconclusive = Inconclusive.DEFAULT
) -> Report:
    """Check a run against a baseline; without one, against the policy's absolute bounds only."""
    runs = baseline.runs if baseline is not None else ()
    last = runs[-1] if runs else None
    found = differences(last.facts, after.facts) if last else ()
    noise = noise_of((*runs, after), policy.noise)
    judgements = _compared(runs, after, policy, found, noise) + judge_bounds(after, policy)
    fresh: tuple[SeenFinding, ...] = ()
    if runs and _same_machine(found):
        fresh, unsure = new_findings(runs, after, policy, noise)
        judgements += unsure
    unusable = unusable_input(runs, after, policy.health, found)
    if unusable:
        judgements = tuple(_in_doubt(each) for each in judgements)
    elif all(each.verdict is Verdict.NOT_COMPARED for each in judgements):
        unusable = ("nothing could be compared: no gated metric is in both runs on comparable terms",)
    unanswered = () if unusable else _unanswered(judgements, policy)
    verdict = _overall(judgements, fresh, unusable, unanswered)
    why = explain(last, after) if last and verdict is not Verdict.PASS else EMPTY_WHY
    before = last.label if last else ""
    return Report(
        verdict, judgements, found, unusable, fresh, why, before, after.label, len(runs), inconclusive, unanswered
    )


def _compared(
    runs: Sequence[Measured], after: Measured, policy: Policy, found: Sequence[Difference], noise: Noise
) -> tuple[Judgement, ...]:
    olds = [run.by_key() for run in runs]
    news = after.by_key()
    keys = sorted(set(news).union(*olds))
    families: dict[str, str] = {}
    judged: dict[str, tuple[list[Series], Series]] = {}
    done: dict[str, Judgement] = {}
    for key in keys:
        some = news.get(key) or next(old[key] for old in olds if key in old)
        rule = policy.rule(some)
        if rule is None:
            continue
        before = [old[key] for old in olds if key in old]
        bar = barred(some.unit, found, policy.across)
        if bar is not None:
            done[key] = _aside(some, Verdict.NOT_COMPARED, f"not comparable: {bar}")
        elif not before:
            done[key] = _aside(some, Verdict.NOT_COMPARED, "the baseline does not have it")
        elif key not in news:
            layout = any(each.kind in (FactKind.LAYOUT, FactKind.WORK) for each in found)
            what = Verdict.NOT_COMPARED if layout else Verdict.INCONCLUSIVE
            done[key] = _aside(some, what, "measured in the baseline, but not in this run")
        else:
            judged[key] = (before, some)
            families[key] = rule.family or key
    tails = _tails(families, policy.false_alarm)
    for key, (before, some) in judged.items():
        rule = policy.rule(some)
        if rule is not None:
            done[key] = judge(before, some, rule, tails[families[key]], noise)
    return tuple(done[key] for key in sorted(done))


def _tails(families: dict[str, str], false_alarm: float) -> dict[str, float]:
    """Share the alarm budget of the check: half for the step itself, the rest evenly among everything else."""
    names = set(families.values())
    others = max(len(names - {STEP_FAMILY}), 1)
    rest = false_alarm / 2 if STEP_FAMILY in names else false_alarm
    return {name: false_alarm / 2 if name == STEP_FAMILY else rest / others for name in names}


def _unanswered(judgements: Sequence[Judgement], policy: Policy) -> tuple[str, ...]:
    """List what the command line asked for, and the step itself, where it could not be judged at all."""
    open_ones = [each for each in judgements if math.isnan(each.change)]
    answered = [each.key for each in judgements if not math.isnan(each.change)]
    found = [
        f"{each.key}: {each.reason}"
        for each in open_ones
        if each.key == STEP_TIME and each.verdict is Verdict.INCONCLUSIVE and each.more_steps == 0
    ]
    found += [f"{each.key}: {each.reason}" for each in open_ones if SIGN in each.key]
    for name in policy.asked:
        if not any(fits(name, key) for key in answered):
            reason = next((each.reason for each in open_ones if fits(name, each.key)), "no such value in either run")
            found.append(f"{name}: {reason}")
    return tuple(dict.fromkeys(found))


def _aside(series: Series, verdict: Verdict, reason: str) -> Judgement:
    return Judgement(series.key, series.title, series.unit, series.better, verdict, reason)


def _in_doubt(found: Judgement) -> Judgement:
    """Take a verdict back that damaged input gave."""
    if found.verdict in (Verdict.NOT_COMPARED, Verdict.INCONCLUSIVE):
        return found
    return replace(found, verdict=Verdict.INCONCLUSIVE, reason="the input is damaged, see above", more_steps=0)


def _same_machine(found: Sequence[Difference]) -> bool:
    return not any(each.kind is FactKind.HARDWARE and each.known for each in found)


def _overall(
    judgements: Sequence[Judgement],
    fresh: Sequence[SeenFinding],
    unusable: Sequence[str],
    unanswered: Sequence[str],
) -> Verdict:
    said = {each.verdict for each in judgements}
    if unusable:
        return Verdict.INCONCLUSIVE
    if Verdict.REGRESSED in said or fresh:
        return Verdict.REGRESSED
    if Verdict.INCONCLUSIVE in said or unanswered:
        return Verdict.INCONCLUSIVE
    return Verdict.IMPROVED if Verdict.IMPROVED in said else Verdict.PASS
