"""Clock fit: one offset (and, over long windows, one drift) per host, from calls whose members end together.

Members of an all-reduce leave it within microseconds. So each call yields one equation per member:

    end + offset[clock of the member] + drift * time = the call's true end + a residual

  1. Select the calls whose members end together, at most 500 per group. Ranks that no collective connects are tied by
     their sends and receives.
  2. Estimate a rough offset per clock: median differences of the ends, summed along a walk over connected clocks.
  3. Fit the remainder by least squares (`least_squares`). Offsets and drifts are accepted at four standard errors.
  4. If the fit does not bring the ends closer together, leave the clocks unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import group_codes, middles, numbered, per_code, rows_by_code
from usp_prof.tables.matching import least_squares
from usp_prof.tables.matching.least_squares import Fit, Observations
from usp_prof.tables.matching.ties import Ties, components, pairs_of_clocks

_MOST_CONTRADICTED = 0.005  # maximum share of calls in which a member ends before the last one starts
_SAME_END_NS = 20_000  # ends of one call differ by up to this much with well-synchronized clocks
_MOST_DRIFT_PPM = 1_000.0  # clocks never drift faster: a larger fitted drift means that the fit failed
_MIN_T_OF_DRIFT = 4.0  # a drift is accepted if it is this many times its standard error
_MIN_T_OF_OFFSET = 4.0  # below four standard errors an offset is indistinguishable from zero
_BETTER = 0.98  # drifts are fitted only if they reduce the residual below this share


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Fitted clocks, numbered from 0, and the correction of each clock to the common time.

    Ranks with the same clock form a domain.
    """

    domain: Ints
    """Clock number, by rank."""
    component: Ints
    """Number of the set of connected clocks, by rank."""
    offset_ns: Ints
    """Offset to add at the reference time, by clock."""
    drift_ppm: Floats
    """Drift to add per unit of time since the reference, in parts per million, by clock; NaN if unknown."""
    reference_ns: Ints
    """Middle of the clock's ties, in that clock's own time, by clock."""

    @classmethod
    def alone(cls, domain: Ints, ties: Ties) -> Solution:
        """Build a solution with zero offsets and unknown drifts."""
        count = int(domain.max()) + 1 if len(domain) else 0
        clocks, clock = numbered(domain[ties.row])
        # Earliest and latest end of the ties, by clock.
        low, high = (per_code(clock, ties.end, how, len(clocks)) for how in (np.minimum, np.maximum))
        reference = np.zeros(count, np.int64)
        reference[clocks] = low + (high - low) // 2
        return cls(domain, components(domain, ties), np.zeros(count, np.int64), np.full(count, np.nan), reference)

    def align(self, ties: Ties, when: Ints) -> Ints:
        """Convert times of the ties' members to the common clock."""
        domain = self.domain[ties.row]
        ppm = np.nan_to_num(self.drift_ppm)[domain]
        drifted = np.rint((when - self.reference_ns[domain]) * (ppm * 1e-6)).astype(np.int64)
        return np.asarray(when + self.offset_ns[domain] + drifted)

    def disagreement(self, ties: Ties) -> Ints:
        """Return the distance of each member's end from the middle of its call's ends."""
        if not len(ties.call):
            return np.zeros(0, np.int64)
        end = self.align(ties, ties.end)
        calls = ties.calls
        low, high = (per_code(ties.call, end, how, calls) for how in (np.minimum, np.maximum))
        mean = np.bincount(ties.call, end - low[ties.call], calls) / np.bincount(ties.call, minlength=calls)
        # With two members, each is half their difference away. With more, the middle is the mean, as in the fit.
        return np.where(high[ties.call] > low[ties.call], np.abs(end - low[ties.call] - mean[ties.call]), 0).astype(int)

    def possible(self, ties: Ties) -> bool:
        """Return whether the clocks are consistent: members almost never end before the last one starts."""
        first_end = per_code(ties.call, self.align(ties, ties.end), np.minimum, ties.calls)
        last_start = per_code(ties.call, self.align(ties, ties.start), np.maximum, ties.calls)
        contradicted = int((first_end < last_start - _SAME_END_NS).sum())
        return not ties.calls or contradicted / ties.calls <= _MOST_CONTRADICTED

    def contradicted_ranks(self, ties: Ties) -> Flags:
        """Mark ranks that do not share the clock assigned to them.

        Two conditions must hold: too many calls among the ranks of the clock are impossible, and the rank's ends are
        typically far from the others'.
        """
        clocks, ranks = int(self.domain.max(initial=-1)) + 1, len(self.domain)
        # Each member's call, restricted to the members of one clock.
        pair, call = numbered(ties.call * clocks + self.domain[ties.row])
        count = np.bincount(call, minlength=len(pair))
        first_end = per_code(call, ties.end, np.minimum, len(pair))
        last_start = per_code(call, ties.start, np.maximum, len(pair))
        clock = pair % max(clocks, 1)
        calls = np.bincount(clock[count > 1], minlength=clocks)
        impossible = np.bincount(clock[first_end < last_start - _SAME_END_NS], minlength=clocks)
        middle_end = middles(call, ties.end)[0]
        is_shared = count[call] > 1
        distance = (ties.end - middle_end[call])[is_shared]
        is_apart = np.zeros(ranks, bool)
        for rank, members in rows_by_code(ties.row[is_shared]).items():
            is_apart[rank] = abs(float(np.median(distance[members]))) > _SAME_END_NS
        return np.asarray(is_apart & (impossible > _MOST_CONTRADICTED * calls)[self.domain], bool)


def solve(start: Solution, ties: Ties) -> Solution:
    """Fit offsets and drifts that bring the ends together; return `start` unchanged if the fit is no better."""
    tying = ties.across(start.domain)
    if not len(tying.call):
        return start
    rough = replace(start, offset_ns=_rough(start.domain, tying))
    solved = _refined(rough, tying)
    return solved if np.median(solved.disagreement(tying)) < np.median(start.disagreement(tying)) else start


def _rough(domain: Ints, ties: Ties) -> Ints:
    """Return rough offsets, summed along median differences from each component's first clock.

    Offsets are exact integers even if the clocks are far apart.
    """
    first_clock, second_clock, difference = pairs_of_clocks(domain, ties)
    # For each clock: the clocks it shares calls with, and how much larger their offsets are.
    edges: dict[int, list[tuple[int, int]]] = {}
    for rows in rows_by_code(group_codes(first_clock, second_clock)).values():
        one_id, other_id = int(first_clock[rows[0]]), int(second_clock[rows[0]])
        if one_id != other_id:
            middle = int(np.sort(difference[rows])[len(rows) // 2])
            edges.setdefault(one_id, []).append((other_id, middle))
            edges.setdefault(other_id, []).append((one_id, -middle))
    count = int(domain.max()) + 1
    offset, reached = np.zeros(count, np.int64), np.zeros(count, bool)
    for root in range(count):
        waiting = [] if reached[root] else [root]
        while waiting:
            clock = waiting.pop(0)
            reached[clock] = True
            for neighbor, later in edges.get(clock, []):
                if not reached[neighbor]:
                    offset[neighbor], reached[neighbor] = offset[clock] + later, True
                    waiting.append(neighbor)
    return offset


def _refined(rough: Solution, ties: Ties) -> Solution:
    """Fit the error left by the rough offsets; use drifts only if significant and if they reduce the residual."""
    clock = rough.domain[ties.row]
    aligned = rough.align(ties, ties.end)
    calls = ties.calls
    anchor = per_code(ties.call, aligned, np.minimum, calls)[ties.call]
    seconds = (ties.end - rough.reference_ns[clock]) / 1e9
    count = len(rough.offset_ns)
    # Ends are relative to the first end of their call: floats would lose the low digits of nanoseconds since 1970.
    seen = Observations(ties.call, clock, (aligned - anchor).astype(float), seconds, count)
    component_of_clock = np.full(count, np.iinfo(np.int64).max)
    component_of_clock[rough.domain] = rough.component
    # The first clock of each component is the reference for the others.
    pinned = np.unique(component_of_clock, return_index=True)[1]
    fit = least_squares.solve(seen, pinned, np.zeros(count, bool))
    drifting, certain = _drifting(seen, pinned)
    sane = np.abs(drifting.drift).max() < _MOST_DRIFT_PPM * 1e3
    if certain.any() and sane and drifting.sigma < _BETTER * fit.sigma:
        has_known_drift = certain | np.isin(np.arange(count), pinned)
        ppm = np.where(has_known_drift & np.isin(np.arange(count), clock), drifting.drift / 1e3, np.nan)
        return replace(rough, offset_ns=_whole_offset(rough, drifting), drift_ppm=ppm)
    return replace(rough, offset_ns=_whole_offset(rough, fit))


def _drifting(seen: Observations, pinned: Ints) -> tuple[Fit, Flags]:
    """Fit with significant drifts only, and return the fit and a mask of these drifts.

    An insignificant drift would be extrapolated to times without calls. Removing one can make others insignificant,
    because errors propagate along chains of clocks, so the fit is repeated.
    """
    may_drift = np.ones(seen.clocks, bool)
    while True:
        fit = least_squares.solve(seen, pinned, may_drift)
        certain = may_drift & (np.abs(fit.drift) > _MIN_T_OF_DRIFT * fit.drift_error)
        if not certain.any() or (certain == may_drift).all():
            return fit, certain
        may_drift = certain


def _whole_offset(rough: Solution, fit: Fit) -> Ints:
    """Return each clock's rough plus fitted offset; an offset within noise is zero."""
    offset_ns = rough.offset_ns + np.rint(fit.offset).astype(np.int64)
    is_noise = (fit.drift == 0) & (np.abs(offset_ns) <= _MIN_T_OF_OFFSET * fit.offset_error)
    return np.where(is_noise, 0, offset_ns)
