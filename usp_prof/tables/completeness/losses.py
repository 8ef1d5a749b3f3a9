"""Losses: ranks that lack a notable share of their work or calls, so that figures based on them are withheld."""

from __future__ import annotations

from usp_prof.model.health import HealthRow, Severity
from usp_prof.tables.events.host_calls import LOST_COMMUNICATION
from usp_prof.tables.table_set import TableSet

LOST_WORK = ("lost_device_work", "device_ends_early")
LOST_CALLS = ("calls_missing", "sequence_gaps")
COPIED = ("identical_ranks",)


def losses(tables: TableSet, *codes: str) -> list[HealthRow]:
    """Return the health errors for a notable share of missing device work or calls; all codes if none is given."""
    wanted = codes or (*LOST_WORK, *LOST_CALLS, *COPIED)
    return [row for row in tables.health if row.code in wanted and row.severity is not Severity.INFO]


def code_and_rank(row: HealthRow) -> str:
    """Name a health row, whose own line has the details."""
    return f"{row.code} of rank {row.rank}" if row.rank >= 0 else row.code


def ranks_without_work(tables: TableSet) -> frozenset[int]:
    """Return the ranks that lack a notable share of their device work."""
    return frozenset(row.rank for row in losses(tables, *LOST_WORK))


def ranks_without_calls(tables: TableSet) -> frozenset[int]:
    """Return the ranks with missing collectives that cannot be matched in order with their peers'."""
    ranks_with_losses = {row.rank for row in losses(tables, *LOST_CALLS)}
    ranks_with_losses |= {
        rank
        for rank in ranks_without_work(tables)
        if rank in tables.ranks and tables.columns("launches", rank).matches("lost", LOST_COMMUNICATION).any()
    }
    return frozenset(rank for rank in ranks_with_losses if rank in tables.ranks and not _is_numbered(tables, rank))


def _is_numbered(tables: TableSet, rank: int) -> bool:
    """Return whether all collectives of a rank have sequence numbers, by which they are matched."""
    sequence = tables.columns("collectives", rank)["sequence"]
    return bool(len(sequence) and (sequence >= 0).all())


def withheld(tables: TableSet, figures: str) -> list[HealthRow]:
    """Return a health row that names the figures withheld because device work is missing; empty without losses."""
    if not losses(tables, *LOST_WORK):
        return []
    detail = f"{figures}: device work is missing from the trace (see lost_device_work, device_ends_early)"
    return [HealthRow("figures_withheld", Severity.INFO, detail=detail)]
