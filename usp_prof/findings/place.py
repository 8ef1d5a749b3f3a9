"""Location of a finding about host time that several ranks spend: the rank that spends the most, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.health import spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.model.finding import PlainMap

STANDS_OUT = 1.5
"""A rank is named if it spends this many times as much as every other rank. Where all ranks of a real run pause, the
rank that pauses most was late by chance: it had up to 1.39 times the pauses of the next one."""


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
