"""What was found, and what would each be worth? All findings, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.report.document import Findings, Section

if TYPE_CHECKING:
    from usp_prof.report.context import Context


def build(context: Context, title: str) -> Section | None:
    """List every finding."""
    if not context.findings:
        return None
    return Section("findings", title, (Findings(context.findings, title=""),))
