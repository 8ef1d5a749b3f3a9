"""Verdict of a run: the length of a step, what is wrong first, and what fixing it saves. All pages share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings.causes import causes_of
from usp_prof.model.finding import Basis
from usp_prof.model.metric import Unit
from usp_prof.report.figures import Figures
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from usp_prof.findings.causes import Cause
    from usp_prof.model.finding import Finding
    from usp_prof.report.document import Document

NOTABLE = 0.02
"""Gains below 2% of a step are not mentioned."""


def verdict(document: Document) -> str:
    """Describe how long a step takes, and the finding with the largest certain gain; empty if no step is known."""
    span, length_ns = measured_span(Figures(document.values))
    if length_ns is None:
        return ""
    took = f"The {span} takes {quantity(length_ns, Unit.NS)}"
    first = first_notable(document)
    if first is None:
        return f"{took}. No finding is certain to save more than {quantity(NOTABLE, Unit.FRACTION)} of it."
    return f"{took}. {first.finding.title}. Fixing this saves {saving(first.finding)} of the {span}."


def measured_span(figures: Figures) -> tuple[str, float | None]:
    """Return the measured span (a step, or the recorded window) and its length: the median over the job's steps."""
    step_ns = figures.whole("job_step_time")
    return ("step", step_ns) if step_ns is not None else ("window", figures.whole("window_time"))


def first_notable(document: Document) -> Cause | None:
    """Return the most important cause whose fix saves a notable share of the step."""
    for cause in causes_of(document.findings).causes:
        if max(certain_gain(cause.finding), _bound(cause.finding)) > NOTABLE:
            return cause
    return None


def certain_gain(finding: Finding) -> float:
    """Return the certain gain of a finding: gain minus error, or 0 for an upper limit."""
    return 0.0 if finding.basis is Basis.BOUND else max(finding.certain_gain_fraction, 0.0)


def _bound(finding: Finding) -> float:
    return finding.gain_fraction if finding.basis is Basis.BOUND else 0.0


def saving(finding: Finding) -> str:
    """Return the saving of a finding: at least the certain gain, or at most the upper limit."""
    if finding.basis is Basis.BOUND:
        return f"at most {quantity(finding.gain_fraction, Unit.FRACTION)}"
    return f"at least {quantity(certain_gain(finding), Unit.FRACTION)}"
