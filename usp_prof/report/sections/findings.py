"""What was found, and what would each be worth? All findings, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings.causes import causes_of
from usp_prof.report.document import Findings, Section

if TYPE_CHECKING:
    from usp_prof.report.context import Context


def build(context: Context, title: str) -> Section | None:
    """List every finding: the most important causes first, all others to unfold."""
    if not context.findings:
        return None
    shown = causes_of(context.findings).shown
    listed = [each for cause in shown for each in (cause.finding, *cause.parts)]
    rest = tuple(finding for finding in context.findings if not any(finding is each for each in listed))
    rest = tuple(finding for cause in shown for finding in cause.parts) + rest
    return Section("findings", title, (Findings(shown, rest=rest, title="", proofs=True),))
