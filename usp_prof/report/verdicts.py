"""How is a straggler's verdict said? A culprit with its cost is a finding, also where no rule has replayed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.analyses._causes import Why
from usp_prof.model.finding import Basis, Finding, Level
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.analyses.result import Result
    from usp_prof.analyses.stragglers import Culprit, StragglersResult

CODE = "late-rank"
_CRITICAL = 0.1
_ADVICE = {
    Why.SLOW_COMPUTE: "The same work takes longer there: look at its clocks, power, temperature and neighbours.",
    Why.MORE_WORK: "It has more to do than its peers: look at how layers, experts or tokens are shared out.",
    Why.SLOW_HOST: "Its launches come late: look at that host's CPU load, pinning, clocks and Python's collector.",
    Why.LATE_INPUT: "It waits for data: more loader workers, prefetching, or faster storage on that host.",
    Why.SLOW_LINK: "Its transfers take longer: look at that link's errors, its width and the placement.",
    Why.COPIES: "It copies more between host and device: pin memory and copy ahead.",
    Why.UNKNOWN: "The trace does not show why: record with shapes and stacks on that rank.",
}


def verdicts(results: Mapping[str, Result]) -> tuple[Finding, ...]:
    """Say each culprit as a finding, costliest first."""
    if "stragglers" not in results:
        return ()
    return tuple(_finding(culprit) for culprit in cast("StragglersResult", results["stragglers"]).culprits)


def _finding(culprit: Culprit) -> Finding:
    cost = quantity(round(culprit.cost_ns), Unit.NS)
    often = "" if culprit.persistent else " in some steps"
    return Finding(
        code=CODE,
        title=f"rank {culprit.rank} is late for {culprit.axis} calls{often}, {cost} a step: {_cause(culprit.why)}",
        where={"rank": culprit.rank, "axis": culprit.axis},
        evidence={
            "cost_ns": round(culprit.cost_ns),
            "slowdown": culprit.slowdown,
            "steps": ", ".join(map(str, culprit.steps)),
            **{f"{part.replace(' ', '_')}_over_peers_ns": over for part, over in culprit.evidence.items()},
        },
        gain_fraction=culprit.step_fraction,
        cumulative_gain_fraction=culprit.step_fraction,
        basis=Basis.BOUND,
        level=Level.CRITICAL if culprit.step_fraction >= _CRITICAL else Level.WARNING,
        advice=_ADVICE[culprit.why],
    )


def _cause(why: Why) -> str:
    return "the trace does not show why" if why is Why.UNKNOWN else str(why)
