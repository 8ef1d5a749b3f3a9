"""Verdict of a run: the length of a step, what is wrong first, what fixing it saves, and the ranks that are late.

It is computed once, with the report. Terminal, web page, dashboard and Python render it and never judge again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.findings.causes import Cause, causes_of
from usp_prof.model.finding import Basis, Finding
from usp_prof.model.metric import Unit
from usp_prof.report.figures import Figures, Key, Number
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from usp_prof.analyses.stragglers import Culprit

NOTABLE = 0.02
"""Shares below 2% of a step are not mentioned: gains, lateness, idle time, differences between two lengths."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that others wait for: in collectives of which axis, why, and how long per step."""

    rank: int
    axis: str
    why: str
    late_ns: float
    late_fraction: float | None
    """Share of the axis' collectives in which it arrives last; `None` for a slow link on which it is never last."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measured span (a step, or the recorded window), the cause to act on first, and the late ranks."""

    span: str = "step"
    length_ns: float | None = None
    cause: Cause | None = None
    """The first cause whose fix is certain to save a notable share; its finding has place, evidence, and action."""
    late_ranks: tuple[LateRank, ...] = ()
    """The ranks that others wait for in collectives, latest first."""
    late_in_messages: int | None = None
    """The rank whose repair saves most and that is late in sends and receives only."""

    @property
    def sentence(self) -> str:
        """How long a step takes, what is wrong first, and what fixing it saves; empty if no step is known."""
        if self.length_ns is None:
            return ""
        took = f"The {self.span} takes {quantity(self.length_ns, Unit.NS)}"
        return f"{took}. {self.worst}"

    @property
    def worst(self) -> str:
        """What is wrong first, and what fixing it saves."""
        if self.cause is None:
            return f"No finding is certain to save more than {quantity(NOTABLE, Unit.FRACTION)} of the {self.span}."
        finding = self.cause.finding
        return f"{finding.title}. Fixing this saves {saving(finding)} {of_step(finding)}."

    @property
    def straggler(self) -> int | None:
        """The rank that others wait for longest."""
        return self.late_ranks[0].rank if self.late_ranks else self.late_in_messages

    def late_rank(self, rank: object) -> LateRank | None:
        """Return a late rank by its number."""
        return next((late for late in self.late_ranks if late.rank == rank), None)


UNKNOWN = Verdict()
"""The verdict of a document without a run."""


def verdict_of(figures: Figures, findings: Sequence[Finding], culprits: Sequence[Culprit] = ()) -> Verdict:
    """Judge a run by its figures, its ranked findings, and the culprits of the straggler analysis."""
    step_ns = figures.overall("job_step_time")
    span, length_ns = ("step", step_ns) if step_ns is not None else ("window", figures.overall("window_time"))
    late = tuple(
        LateRank(c.rank, c.axis, str(c.why), c.cost_ns, figures.at("late_fraction", axis=c.axis, rank=c.rank) or None)
        for c in culprits
    )
    in_messages = next((int(rank) for rank in gains_in_messages(figures)), None)
    return Verdict(span, length_ns, first_notable(findings), late, in_messages)


def gains_in_messages(figures: Figures) -> dict[Key, Number]:
    """Return the gain of repairing ranks that are late in sends and receives only, the largest first.

    Lateness is measured in collectives. Such a rank is hardly late there, but its repair saves time.
    """
    step = figures.rank_step_ns
    cost, gains = figures.along("straggler_cost", "rank"), figures.along("repair_gain", "rank")
    is_shown = cost or gains  # the lateness of ranks outside the selection is unknown
    late = [
        rank
        for rank, gain in gains.items()
        if rank in is_shown and gain >= NOTABLE and cost.get(rank, 0) <= NOTABLE * step
    ]
    return {rank: gains[rank] for rank in sorted(late, key=lambda rank: (-gains[rank], rank))}


def first_notable(findings: Sequence[Finding]) -> Cause | None:
    """Return the most important cause whose fix saves a notable share of the step."""
    for cause in causes_of(findings).causes:
        finding = cause.finding
        gain = finding.gain_fraction if finding.basis is Basis.BOUND else finding.certain_gain_fraction
        if gain > NOTABLE:
            return cause
    return None


def saving(finding: Finding) -> str:
    """Return the gain of a finding with its error, or as the upper limit that it is: 42.8% ±5.0%, at most 43.0%."""
    most = "at most " if finding.basis is Basis.BOUND else ""
    gain, error = quantity(finding.gain_fraction, Unit.FRACTION), error_of_gain(finding)
    return f"{most}{gain} {error}".rstrip()


def error_of_gain(finding: Finding) -> str:
    """Return the error of a gain, empty if it is exact; a range if both exceed the step: (49.9% to 100.0%)."""
    if finding.gain_fraction + finding.error_fraction > 1:
        return f"({quantity(finding.certain_gain_fraction, Unit.FRACTION)} to {quantity(1, Unit.FRACTION)})"
    return f"\u00b1{quantity(finding.error_fraction, Unit.FRACTION)}" if finding.error_fraction else ""


def of_step(finding: Finding) -> str:
    """Name what the gain of a finding is a share of: of the step, of the 49.6 ms step without recording."""
    if not finding.without_recording:
        return f"of the {finding.span}"
    return f"of the {quantity(finding.step_ns, Unit.NS)} {finding.span} without recording"


def certain_gain(finding: Finding) -> float:
    """Return the certain gain of a finding: gain minus error, or 0 for an upper limit."""
    return 0.0 if finding.basis is Basis.BOUND else max(finding.certain_gain_fraction, 0.0)
