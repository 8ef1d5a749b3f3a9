"""What was wrong with the traces, and what cannot be known because of it? Every row of health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.report.document import Health, Section

if TYPE_CHECKING:
    from usp_prof.report.context import Context


def build(context: Context, title: str) -> Section:
    """List every row, worst first."""
    order = ("data_loss", "error", "info")
    rows = sorted(context.health, key=lambda row: (order.index(row.severity), row))
    return Section("health", title, (Health(tuple(rows), title=""),))
