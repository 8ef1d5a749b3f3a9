"""What is wrong with the input? The rows of health as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.schema import RANK, Schema, integer, text
from usp_prof.tables.build import table_from_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from usp_prof.model.health import HealthRow
    from usp_prof.tables.table_set import TableSet

SCHEMA = Schema(
    "health",
    "Damage and gaps: what was found, how often, and what cannot be known because of it. Rank -1 is the run.",
    (
        RANK,
        text("code", "Short name of the fault."),
        text("severity", "info, error or data_loss."),
        integer("count", "How often."),
        text("detail", "What it is and what it means for the figures."),
        text("file", "File."),
    ),
)


def build_run(tables: TableSet) -> pa.Table:
    """Build the table of all ranks, with what was found of the run as a whole."""
    return build(tables.health)


def build(rows: Iterable[HealthRow]) -> pa.Table:
    """Build the table from rows of health, worst and most frequent where the order says so: by code, then file."""
    return table_from_rows(
        SCHEMA,
        (
            {
                "rank": row.rank,
                "code": row.code,
                "severity": row.severity.value,
                "count": row.count,
                "detail": row.detail,
                "file": row.file,
            }
            for row in sorted(rows)
        ),
    )
