"""Ties: members of calls that end together, from which the clock differences of their ranks are derived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.columns.rows import distinct, group_codes, lowest_reached, numbered, occurrence, per_code
from usp_prof.tables.communication.posts import P2P

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.matching.same_calls import MatchedParts


END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_CALLS_PER_GROUP = 500
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ties:
    """Members of calls with at least two members, rank by rank; all arrays but `number` have one entry per member."""

    call: Ints
    """Number of the member's call, from 0."""
    row: Ints
    """Index of its rank in the list of ranks."""
    start: Ints
    end: Ints
    """Start and end are times on the rank's own clock."""
    part: Ints
    """Row in its rank's `collectives`."""
    number: Ints
    """Number of the call in the run, by call, ascending."""

    @property
    def calls(self) -> int:
        """Number of calls."""
        return len(self.number)

    def take(self, members: NDArray[Any]) -> Ties:
        """Select members by a mask or by row numbers; calls keep their numbers."""
        call, row, start, end = (array[members] for array in (self.call, self.row, self.start, self.end))
        return Ties(call, row, start, end, self.part[members], self.number)


@dataclass(frozen=True, slots=True, eq=False)
class AllTies:
    """Ties of a run, block by block; only ties across clocks are ever combined."""

    collectives: tuple[Ties, ...]
    transfers: tuple[Ties, ...]
    """Sends and receives; empty if collectives connect all ranks."""

    @property
    def blocks(self) -> tuple[Ties, ...]:
        """All blocks of ties."""
        return (*self.collectives, *self.transfers)

    def across(self, domain: Ints) -> Ties:
        """Return the ties of calls with members on several clocks: collectives, then transfers."""
        collectives, transfers = (
            _combined([_across(domain, ties) for ties in kind]) for kind in (self.collectives, self.transfers)
        )
        return _below([collectives, transfers], np.concatenate([collectives.call, transfers.call + collectives.calls]))


def _combined(blocks: Sequence[Ties]) -> Ties:
    """Combine the ties of blocks, rank by rank, with calls numbered in the order of the run."""
    number_of_member = np.concatenate([_NOTHING, *(ties.number[ties.call] for ties in blocks)])
    number, call = numbered(number_of_member)
    combined = replace(_below(blocks, call), number=number)
    return combined.take(np.lexsort((combined.part, combined.row))) if len(blocks) > 1 else combined


def _below(blocks: Sequence[Ties], call: Ints) -> Ties:
    """Concatenate the ties of blocks, with the given call numbers."""
    row, start, end, part, number = (
        np.concatenate([_NOTHING, *of_blocks])
        for of_blocks in (
            [ties.row for ties in blocks],
            [ties.start for ties in blocks],
            [ties.end for ties in blocks],
            [ties.part for ties in blocks],
            [ties.number for ties in blocks],
        )
    )
    return Ties(call, row, start, end, part, number)


def ties_of(parts: MatchedParts, ranks: Ints) -> tuple[Ties, Ties]:
    """Return the ties of a block from collectives whose members end together, and from sends and receives."""
    is_matched = parts.call >= 0
    ends_together, is_transfer = (parts.columns.matches("op", *ops) for ops in (END_TOGETHER, P2P))
    return _members(parts, is_matched & ends_together, ranks), _members(parts, is_matched & is_transfer, ranks)


def joined_ties(blocks: Iterable[tuple[Ties, Ties]], ranks: Ints) -> AllTies:
    """Combine the ties of all blocks; transfers are included only if collectives do not connect all ranks."""
    collectives, transfers = zip(*blocks, strict=True)
    # Treat every rank as its own clock: do the collectives connect them all?
    component = components(np.arange(len(ranks), dtype=np.int64), collectives)
    return AllTies(collectives, transfers if len(np.unique(component)) > 1 else ())


def _members(parts: MatchedParts, chosen: Flags, ranks: Ints) -> Ties:
    """Return the chosen parts of calls with at least two of them, with a bounded number of calls per group."""
    rows = np.flatnonzero(chosen)
    members_of_call = np.bincount(parts.call[rows], minlength=len(parts.number))
    rows = rows[members_of_call[parts.call[rows]] >= 2]
    if len(rows):
        rows = rows[_thinned(parts, rows)]
    distinct_calls, call = numbered(parts.call[rows])
    row = np.searchsorted(ranks, parts.rank[rows])
    return Ties(call, row, parts.start[rows], parts.end[rows], parts.part[rows], parts.number[distinct_calls])


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


def _across(domain: Ints, ties: Ties) -> Ties:
    """Select the calls with members on several clocks."""
    clock = domain[ties.row]
    lowest, highest = (per_code(ties.call, clock, how, ties.calls) for how in (np.minimum, np.maximum))
    is_across = lowest != highest
    crossing_ties = ties.take(is_across[ties.call])
    return replace(crossing_ties, call=numbered(crossing_ties.call)[1], number=ties.number[is_across])


def pairs_of_clocks(domain: Ints, ties: Ties) -> tuple[Ints, Ints, Ints]:
    """Pair each member with its call's first: return both clocks, and how much later the first one's end is."""
    order = np.lexsort((domain[ties.row], ties.call))
    call, clock, end = ties.call[order], domain[ties.row][order], ties.end[order]
    first_of_call = np.searchsorted(call, call)
    return clock[first_of_call], clock, end[first_of_call] - end


def components(domain: Ints, blocks: Iterable[Ties]) -> Ints:
    """Return the number of the connected component of each rank's clock; components are numbered by lowest clock."""
    count = int(domain.max()) + 1 if len(domain) else 0
    if not count:
        return domain
    # Pairs of clocks that share a call, encoded as first * count + second.
    pairs = [_NOTHING]
    for ties in blocks:
        first_clock, second_clock, _ = pairs_of_clocks(domain, ties)
        pairs.append(distinct(first_clock * count + second_clock))
    pair = np.concatenate(pairs)
    label = lowest_reached(pair // count, pair % count, np.arange(count))
    return np.unique(label, return_inverse=True)[1][domain]
