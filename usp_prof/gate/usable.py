"""Can these runs be judged at all? Missing ranks and damaged input, in sentences; an empty answer means yes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.gate.facts import Difference, FactKind
from usp_prof.model.health import Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from usp_prof.gate.measured import Measured

_LISTED = 8


def unusable_input(
    before: Sequence[Measured], after: Measured, least: Severity, found: Sequence[Difference]
) -> tuple[str, ...]:
    """Say what forbids a verdict: damage at or above `least`, and ranks that one side has and the other has not.

    A run that was recorded on some ranks only is judged against a baseline of the same ranks.
    """
    reasons = _ranks(before, after, found)
    order = list(Severity)
    for which, run in [*(("baseline", run) for run in before), ("run", after)]:
        for each in run.damage:
            if order.index(each.severity) >= order.index(least):
                rank = f" of rank {each.rank}" if each.rank >= 0 else ""
                reasons.append(f"{which} {run.label}: {each.code}{rank}: {each.detail}".rstrip(": "))
    return tuple(dict.fromkeys(reasons))


def _ranks(before: Sequence[Measured], after: Measured, found: Sequence[Difference]) -> list[str]:
    if not before:
        return _lost(f"run {after.label}", after.missing_ranks)
    reasons = []
    if any(each.kind is FactKind.LAYOUT and each.name == "world size" and each.known for each in found):
        for run in before:
            reasons += _lost(f"baseline {run.label}", run.missing_ranks)
        return reasons + _lost(f"run {after.label}", after.missing_ranks)
    for run in before:
        reasons += _lost(f"run {after.label}", set(run.ranks) - set(after.ranks))
        reasons += _lost(f"baseline {run.label}", set(after.ranks) - set(run.ranks))
    return reasons


def _lost(which: str, ranks: Collection[int]) -> list[str]:
    if not ranks:
        return []
    listed = ", ".join(str(rank) for rank in sorted(ranks)[:_LISTED])
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return [f"{which}: rank{'s' if len(ranks) > 1 else ''} {listed}{more} missing"]
