"""Ties: members of calls that end together, from which the clock differences of their ranks are derived."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, group_codes, is_uniform, lowest_reached, numbered, occurrence
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.matching.same_calls import MatchedParts

END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_CALLS_PER_GROUP = 500


@dataclass(frozen=True, slots=True, eq=False)
class Ties:
    """Members of calls with at least two members: those of collectives, then those of sends and receives, by rank."""

    call: Ints
    """Number of the member's call, from 0."""
    row: Ints
    """Index of its rank in the list of ranks."""
    start: Ints
    end: Ints
    """Start and end are times on the rank's own clock."""
    is_transfer: Flags
    """Whether the call is a send and receive."""

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.call.max(initial=-1)) + 1

    def take(self, members: Flags) -> Ties:
        """Select all members of some calls; the calls are numbered again."""
        row, start, end = (values[members] for values in (self.row, self.start, self.end))
        return Ties(numbered(self.call[members])[1], row, start, end, self.is_transfer[members])

    def across(self, domain: Ints) -> Ties:
        """Select the calls with members on several clocks."""
        return self.take(~is_uniform(self.call, domain[self.row], self.calls)[self.call])


def ties_of(parts: MatchedParts, ranks: Ints) -> Ties:
    """Return the ties of a run: collectives whose members end together.

    Sends and receives are included only if collectives do not connect all ranks.
    """
    collectives = _members(parts, END_TOGETHER)
    ties = _ties(parts, ranks, collectives, collectives[:0])
    # Treat every rank as its own clock: do the collectives connect them all?
    component = components(np.arange(len(ranks), dtype=np.int64), ties)
    return _ties(parts, ranks, collectives, _members(parts, P2P)) if len(np.unique(component)) > 1 else ties


def _ties(parts: MatchedParts, ranks: Ints, collectives: Ints, transfers: Ints) -> Ties:
    """Build ties from rows of parts."""
    rows = np.concatenate([collectives, transfers])
    start = parts.columns["start_ns"][rows]
    end = start + parts.columns["dur_ns"][rows]
    row = np.searchsorted(ranks, parts.columns["rank"][rows])
    return Ties(numbered(parts.call[rows])[1], row, start, end, np.arange(len(rows)) >= len(collectives))


def _members(parts: MatchedParts, ops: tuple[str, ...]) -> Ints:
    """Return the parts of calls of some operations that have at least two, with a bounded number of calls per group."""
    rows = np.flatnonzero((parts.call >= 0) & parts.columns.matches("op", *ops))
    members_of_call = np.bincount(parts.call[rows], minlength=parts.calls)
    rows = rows[members_of_call[parts.call[rows]] >= 2]
    return rows[_thinned(parts, rows)] if len(rows) else rows


def _thinned(parts: MatchedParts, rows: Ints) -> Flags:
    """Mark the parts of a bounded number of calls per group, spread evenly over the window."""
    call = parts.call[rows]
    # Indexed by call: its number, its group, and its position among the calls of the group.
    numbers, first = np.unique(call, return_index=True)
    group = group_codes(parts.columns.codes("group")[0][rows][first])
    nth_of_group = occurrence(group, numbers)
    calls_of_group = np.bincount(group)[group]
    stride = -(-calls_of_group // _CALLS_PER_GROUP)  # rounded up
    return np.isin(call, numbers[nth_of_group % stride == 0])


def pairs_of_clocks(domain: Ints, ties: Ties) -> tuple[Ints, Ints, Ints]:
    """Pair each member with its call's first: return both clocks, and how much later the first one's end is."""
    order = np.lexsort((domain[ties.row], ties.call))
    call, clock, end = ties.call[order], domain[ties.row][order], ties.end[order]
    first_of_call = np.searchsorted(call, call)
    return clock[first_of_call], clock, end[first_of_call] - end


def components(domain: Ints, ties: Ties) -> Ints:
    """Return the number of the connected component of each rank's clock; components are numbered by lowest clock."""
    count = int(domain.max()) + 1 if len(domain) else 0
    if not count:
        return domain
    first_clock, second_clock, _ = pairs_of_clocks(domain, ties)
    pair = distinct(first_clock * count + second_clock)
    label = lowest_reached(pair // count, pair % count, np.arange(count))
    return np.unique(label, return_inverse=True)[1][domain]
