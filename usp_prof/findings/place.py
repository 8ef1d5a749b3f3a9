"""Location of a finding about host time that several ranks spend: the rank that costs the step, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from usp_prof.analyses.measures.lateness import COVERS
from usp_prof.findings.draft import LEAST_GAIN, Draft
from usp_prof.model.edit import Edit
from usp_prof.model.finding import PlainMap
from usp_prof.model.printable import spans
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


def of_ranks(of_time: Callable[[Mapping[int, float], Edit], Draft], spent: Mapping[int, float], edit: Edit) -> Draft:
    """Return the draft for the time of all ranks, which `of_costly_rank` narrows down to one of them."""
    return replace(of_time(spent, edit), spent=spent, of_time=of_time)


def of_costly_rank(tables: TableSet, draft: Draft, gain: float) -> Draft | None:
    """Return the draft for the one rank that costs the step, if there is one; `gain` is that of the draft.

    A rank costs the step if removing its time saves as much as removing that of all ranks, to within `LEAST_GAIN` of
    the step: the time of the others passes while they would wait for this rank anyway.
    """
    spending = sorted((rank for rank, time in draft.spent.items() if time), key=lambda rank: (-draft.spent[rank], rank))
    if draft.of_time is None or len(spending) < 2 or gain < LEAST_GAIN:
        return None
    edits = {rank: replace(draft.edit, places=(("rank", str(rank)),)) for rank in spending[:MOST_TRIED]}
    alone = dict(zip(edits, gains_alone(tables, list(edits.values())), strict=True))
    costly = max(alone, key=lambda rank: alone[rank])
    if alone[costly] < max(COVERS * gain, gain - LEAST_GAIN, LEAST_GAIN):
        return None
    return draft.of_time({rank: time if rank == costly else 0.0 for rank, time in draft.spent.items()}, edits[costly])
