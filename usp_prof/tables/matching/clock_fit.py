"""Clock fit: one offset (and, over long windows, one drift) per host, from calls whose members end together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, occurrence, per_code, rows_by_code
from usp_prof.tables.matching import least_squares
from usp_prof.tables.matching.normal_equations import Observations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.matching.least_squares import Fit
    from usp_prof.tables.matching.same_calls import Parts

    Int = NDArray[np.int64]

_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_CALLS_PER_GROUP = 500
_CONTRADICTED_AT_MOST = 0.005
_NOTHING_NS = 20_000  # members of one call end this far apart with the best of clocks
_BEST_DRIFT_PPM = 1_000.0
_SURE = 4.0  # a drift is believed when it is this many times its standard error
_TOLD = 4.0  # an offset is told from none when it is this many times its standard error
_BETTER = 0.98  # and when it brings the residual below this share


@dataclass(frozen=True, slots=True, eq=False)
class Ties:
    """Members of calls that have at least two; `row` is the rank's place among the ranks, `call` numbers from 0."""

    call: Int
    row: Int
    start: Int
    end: Int


def find_ties(parts: Parts, ranks: Int) -> Ties:
    """Take the calls whose members end together; where a group has none, its sends and receives."""
    collective = parts.columns.matches("op", *_TOGETHER) & (parts.call >= 0)
    paired = parts.columns.matches("op", "send", "recv", "send_recv") & (parts.call >= 0)
    found = [_members(parts, rows, ranks) for rows in (collective, paired)]
    joined = _reach(found[0], len(ranks))
    if len(np.unique(joined)) > 1 and len(found[1].call):
        shift = int(found[0].call.max()) + 1 if len(found[0].call) else 0
        return Ties(
            np.concatenate([found[0].call, found[1].call + shift]),
            *(np.concatenate([getattr(t, name) for t in found]) for name in ("row", "start", "end")),
        )
    return found[0]


def _members(parts: Parts, rows: NDArray[np.bool_], ranks: Int) -> Ties:
    index = np.flatnonzero(rows)
    call = parts.call[index]
    members = np.bincount(call, minlength=max(parts.calls, 1))[call] if len(call) else call
    index = index[members >= 2]
    if not len(index):
        nothing = np.zeros(0, np.int64)
        return Ties(nothing, nothing, nothing, nothing)
    index = index[_thinned(parts, index)]
    call = group_codes(parts.call[index])
    return Ties(call, np.searchsorted(ranks, parts.rank[index]), parts.start[index], parts.end[index])


def _thinned(parts: Parts, index: Int) -> NDArray[np.bool_]:
    """Keep of each group a bounded number of calls, spread evenly over the window."""
    call = parts.call[index]
    numbers, first = np.unique(call, return_index=True)
    group = group_codes(parts.columns.codes("group")[0][index][first])
    place, total = occurrence(group, numbers), np.bincount(group)[group]
    stride = -(-total // _CALLS_PER_GROUP)
    return np.isin(call, numbers[place % stride == 0])


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Clocks by domain: offset at the reference time, and drift; ranks have a domain and a component each."""

    domain: Int
    component: Int
    offset_ns: Int
    drift_ppm: NDArray[np.float64]
    reference_ns: Int

    @classmethod
    def alone(cls, domain: Int, ties: Ties) -> Solution:
        """Leave the clocks as they are."""
        count = int(domain.max()) + 1 if len(domain) else 0
        reference = np.zeros(count, np.int64)
        if len(ties.call):
            seen, inverse = np.unique(domain[ties.row], return_inverse=True)
            low = per_code(inverse, ties.end, np.minimum, len(seen))
            reference[seen] = low + (per_code(inverse, ties.end, np.maximum, len(seen)) - low) // 2
        return cls(domain, _components(domain, ties), np.zeros(count, np.int64), np.full(count, np.nan), reference)

    def align(self, ties: Ties, when: Int) -> Int:
        """Bring times of the ties' members to the common clock."""
        domain = self.domain[ties.row]
        ppm = np.nan_to_num(self.drift_ppm)[domain]
        drifted = np.rint((when - self.reference_ns[domain]) * (ppm * 1e-6)).astype(np.int64)
        return np.asarray(when + self.offset_ns[domain] + drifted)

    def disagreement(self, ties: Ties) -> Int:
        """Give for each member how far its end lies from the middle of its call's ends."""
        if not len(ties.call):
            return np.zeros(0, np.int64)
        end = self.align(ties, ties.end)
        calls = int(ties.call.max()) + 1
        low, high = (per_code(ties.call, end, how, calls) for how in (np.minimum, np.maximum))
        mean = np.bincount(ties.call, end - low[ties.call], calls) / np.bincount(ties.call, minlength=calls)
        # Two members: both are half their difference away; the middle of many is their mean, as in the fit.
        return np.where(high[ties.call] > low[ties.call], np.abs(end - low[ties.call] - mean[ties.call]), 0).astype(int)

    def possible(self, ties: Ties) -> bool:
        """Say whether these clocks contradict no call: nobody ends before the last member has begun."""
        if not len(ties.call):
            return True
        calls = int(ties.call.max()) + 1
        first_end = per_code(ties.call, self.align(ties, ties.end), np.minimum, calls)
        last_start = per_code(ties.call, self.align(ties, ties.start), np.maximum, calls)
        return bool((first_end < last_start - _NOTHING_NS).mean() <= _CONTRADICTED_AT_MOST)


def solve(start: Solution, ties: Ties) -> Solution:
    """Find offsets and drifts that bring the ends together; where that is no better, leave the clocks alone."""
    tying = _across(start.domain, ties)
    if not len(tying.call):
        return start
    rough = replace(start, offset_ns=_rough(start.domain, tying))
    solved = _refined(rough, tying)
    return solved if np.median(solved.disagreement(tying)) < np.median(start.disagreement(tying)) else start


def _across(domain: Int, ties: Ties) -> Ties:
    """Keep the calls with members on several clocks."""
    if not len(ties.call):
        return ties
    calls, of_row = int(ties.call.max()) + 1, domain[ties.row]
    low, high = (per_code(ties.call, of_row, how, calls) for how in (np.minimum, np.maximum))
    kept = (low != high)[ties.call]
    return Ties(
        group_codes(ties.call[kept]) if kept.any() else ties.call[:0], ties.row[kept], ties.start[kept], ties.end[kept]
    )


def _pairs(domain: Int, ties: Ties) -> tuple[Int, Int, Int]:
    """Set each member beside its call's first: the two clocks, and by how much the first's end is later."""
    order = np.lexsort((domain[ties.row], ties.call))
    call, clock, end = ties.call[order], domain[ties.row][order], ties.end[order]
    first = np.concatenate([[True], call[1:] != call[:-1]]) if len(call) else np.zeros(0, bool)
    head = np.maximum.accumulate(np.where(first, np.arange(len(call)), 0)) if len(call) else call
    return clock[head], clock, end[head] - end


def _rough(domain: Int, ties: Ties) -> Int:
    """Walk from each component's first clock along the median differences; exact integers, however far apart."""
    one, other, difference = _pairs(domain, ties)
    pair = group_codes(one, other)
    edges: dict[int, list[tuple[int, int]]] = {}
    for rows in rows_by_code(pair).values():
        a, b, sample = int(one[rows[0]]), int(other[rows[0]]), np.sort(difference[rows])
        if a != b:
            middle = int(sample[len(sample) // 2])
            edges.setdefault(a, []).append((b, middle))
            edges.setdefault(b, []).append((a, -middle))
    count = int(domain.max()) + 1
    offset, reached = np.zeros(count, np.int64), np.zeros(count, bool)
    for root in range(count):
        waiting = [] if reached[root] else [root]
        while waiting:
            here = waiting.pop(0)
            reached[here] = True
            for there, later in edges.get(here, []):
                if not reached[there]:
                    offset[there], reached[there] = offset[here] + later, True
                    waiting.append(there)
    return offset


def _refined(rough: Solution, ties: Ties) -> Solution:
    clock = rough.domain[ties.row]
    aligned = rough.align(ties, ties.end)
    calls = int(ties.call.max()) + 1
    anchor = per_code(ties.call, aligned, np.minimum, calls)[ties.call]
    seconds = (ties.end - rough.reference_ns[clock]) / 1e9
    count = len(rough.offset_ns)
    seen = Observations(ties.call, clock, (aligned - anchor).astype(float), seconds, count)
    by_clock = np.full(count, np.iinfo(np.int64).max)
    by_clock[rough.domain] = rough.component
    pinned = np.array([np.flatnonzero(by_clock == c)[0] for c in np.unique(by_clock)], np.int64)
    fit = least_squares.solve(seen, pinned, np.zeros(count, bool))
    drifting, certain = _drifting(seen, pinned)
    sane = np.abs(drifting.drift).max() < _BEST_DRIFT_PPM * 1e3
    if certain.any() and sane and drifting.sigma < _BETTER * fit.sigma:
        known = certain | np.isin(np.arange(count), pinned)
        ppm = np.where(known & np.isin(np.arange(count), clock), drifting.drift / 1e3, np.nan)
        return replace(rough, offset_ns=_told(rough, drifting), drift_ppm=ppm)
    return replace(rough, offset_ns=_told(rough, fit))


def _drifting(seen: Observations, pinned: Int) -> tuple[Fit, NDArray[np.bool_]]:
    """Fit with the drifts that are certain; says which these are.

    One that is not would be carried on to moments that no call saw. Without it others may be certain no more: a chain
    of clocks hands on what its first link seemed to tell.
    """
    asked = np.ones(seen.clocks, bool)
    while True:
        fit = least_squares.solve(seen, pinned, asked)
        certain = asked & (np.abs(fit.drift) > _SURE * fit.drift_error)
        if not certain.any() or (certain == asked).all():
            return fit, certain
        asked = certain


def _told(rough: Solution, fit: Fit) -> Int:
    """Give each clock's whole offset; one that noise alone would show is none: that clock is left alone."""
    whole = rough.offset_ns + np.rint(fit.offset).astype(np.int64)
    steady = fit.drift == 0
    return np.where(steady & (np.abs(whole) <= _TOLD * fit.offset_error), 0, whole)


def _components(domain: Int, ties: Ties) -> Int:
    """Give for each rank the number of the connected component of its clock, by its lowest clock."""
    count = int(domain.max()) + 1 if len(domain) else 0
    if not count:
        return domain
    label = np.arange(count)
    if len(ties.call):
        one, other, _ = _pairs(domain, ties)
        label = _lowest_reached(one, other, label)
    return np.unique(label, return_inverse=True)[1][domain]


def _lowest_reached(one: Int, other: Int, label: Int) -> Int:
    """Give each clock the lowest that pairs lead to: both of a pair take the lower label, until nothing changes."""
    while True:
        lower = label.copy()
        low = np.minimum(label[one], label[other])
        np.minimum.at(lower, label[one], low)
        np.minimum.at(lower, label[other], low)
        while (lower[lower] != lower).any():  # a label that has got a lower one itself hands it on
            lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower


def _reach(ties: Ties, ranks: int) -> Int:
    """Give each rank's component were every rank a clock of its own."""
    return _components(np.arange(ranks, dtype=np.int64), ties)
