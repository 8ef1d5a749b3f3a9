"""Which findings are new, and is that more than noise? A finding's gain is a share of the step, and steps vary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from usp_prof.gate.judgement import Judgement, Verdict
from usp_prof.gate.limit import Scale
from usp_prof.gate.student import t_quantile
from usp_prof.model.finding import Level
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.measured import Measured, SeenFinding
    from usp_prof.gate.noise import Noise
    from usp_prof.gate.policy import Policy


def new_findings(
    before: Sequence[Measured], after: Measured, policy: Policy, noise: Noise
) -> tuple[tuple[SeenFinding, ...], tuple[Judgement, ...]]:
    """Give the findings that no baseline run had and that count, then those that noise may have made."""
    if policy.findings is None:
        return (), ()
    doubt = _doubt(policy, noise, len(before))
    sure, unsure = [], []
    for each in _fresh(before, after, policy.findings):
        known = max((old.gain for run in before for old in run.findings if _mark(old) == _mark(each)), default=0.0)
        if each.gain - known > doubt or not each.gain:
            sure.append(each)
        else:
            unsure.append(_judgement(each, known, doubt))
    return tuple(sure), tuple(unsure)


def _fresh(before: Sequence[Measured], after: Measured, least: Level) -> list[SeenFinding]:
    order = list(Level)
    counted = [order.index(least) <= order.index(each.level) for each in after.findings]
    known = {_mark(old) for run in before for old in run.findings if order.index(old.level) >= order.index(least)}
    return [each for each, counts in zip(after.findings, counted, strict=True) if counts and _mark(each) not in known]


def _doubt(policy: Policy, noise: Noise, runs: int) -> float:
    """Say how much of a step two runs of one configuration may differ."""
    spread = noise.prior.share * noise.step_spread * math.sqrt(1 + 1 / runs)
    return t_quantile(policy.false_alarm / 2, noise.prior.worth) * spread


def _judgement(each: SeenFinding, known: float, doubt: float) -> Judgement:
    more = each.gain - known
    reason = f"new, but runs may differ by {100 * doubt:.0f} % of a step: save a baseline of several runs"
    return Judgement(
        f"finding {each.code}" + (f"[{each.where.replace(' ', ',')}]" if each.where else ""),
        each.title,
        Unit.FRACTION,
        Better.LOWER,
        Verdict.INCONCLUSIVE,
        reason,
        before=known,
        after=each.gain,
        change=more,
        low=more - doubt,
        high=more + doubt,
        scale=Scale.ABSOLUTE,
        allowed=0.0,
        more_steps=-1,
    )


def _mark(finding: SeenFinding) -> tuple[str, str]:
    return (finding.code, finding.where)
