"""Location of a finding about host time that several ranks spend: the rank that costs the step, or all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from usp_prof.analyses.measures.lateness import COVERS
from usp_prof.model.edit import Edit
from usp_prof.model.finding import PlainMap
from usp_prof.model.health import spans
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.predict import gains_alone

STANDS_OUT = 1.5
"""A rank is named if it spends this many times as much as every other rank. Where all ranks of a real run pause, the
rank that pauses most was late by chance: it had up to 1.39 times the pauses of the next one."""
MOST_TRIED = 3
"""Ranks whose time is removed alone, those that spend the most first."""


def outstanding_rank(spent: Mapping[int, float]) -> int | None:
    """Return the rank that spends much more than the others; `spent` has an entry for every rank of the run."""
    worst = max(spent, key=lambda rank: (spent[rank], -rank))
    next_most = max((spent[rank] for rank in spent if rank != worst), default=0.0)
    return worst if spent[worst] > STANDS_OUT * next_most else None


def place_of(spent: Mapping[int, float]) -> PlainMap:
    """Return the location: the outstanding rank, the ranks that spend time, or everywhere if all of them do."""
    rank = outstanding_rank(spent)
    if rank is not None:
        return {"rank": rank}
    spending = [rank for rank in spent if spent[rank]]
    return {"ranks": spans(spending)} if len(spending) < len(spent) else {}


def costly_part(
    tables: TableSet, spent: Mapping[int, float], edit: Edit, least: float
) -> tuple[Mapping[int, float], Edit]:
    """Return the time of the one rank that costs the step, and the edit that removes only this rank's time.

    A rank costs the step if removing its time saves as much as removing that of all ranks, to within `least` of the
    step: the time of the others passes while they would wait for this rank anyway. Without such a rank, the arguments
    are returned as they are. Ranks are not replayed if even all of them together save less than `least`.
    """
    spending = sorted((rank for rank in spent if spent[rank]), key=lambda rank: (-spent[rank], rank))
    if len(spending) < 2:
        return spent, edit
    (of_all,) = gains_alone(tables, [edit])
    if of_all < least:
        return spent, edit
    edits = {rank: replace(edit, places=(("rank", str(rank)),)) for rank in spending[:MOST_TRIED]}
    alone = dict(zip(edits, gains_alone(tables, list(edits.values())), strict=True))
    costly = max(alone, key=lambda rank: alone[rank])
    if alone[costly] < max(COVERS * of_all, of_all - least, least):
        return spent, edit
    return {rank: time if rank == costly else 0.0 for rank, time in spent.items()}, edits[costly]
