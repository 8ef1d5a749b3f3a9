"""Clock jumps: ranks whose collectives end at a different distance from their peers' after some moment.

Members of a collective end almost together. A clock that jumps moves all later ends by the same amount:

    end of rank - mean end of the other members:   +3  -2  +1   0 | 50012  49998  50003     (microseconds)

The largest change of the level is a jump if it is large compared with the spread on either side, and with a round of
the collectives: members of a ring may end one round apart, which is long on a slow link. A constant distance is that
of two clocks.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import is_uniform, middles, numbered, per_code, rows_by_code
from usp_prof.tables.matching.clock_fit import Solution, solve
from usp_prof.tables.matching.ties import Ties

_SIDE = 20
"""Calls on either side of a change whose levels are compared."""
_FEWEST, _NEAR = 3, 5
"""Minimum and usual number of calls on either side that define a level."""
_SPREAD = 0.2
"""A jump is at least five times the spread on either side; smaller level changes occur by noise."""
_NOTABLE_NS = 100_000
"""Smallest jump reported; ends of one call differ by tens of microseconds even with good clocks."""
_APART_NS = 500_000
"""Ranks of one host are not as far apart: timestamps of devices are off by up to 0.2 ms in real traces."""
_SAME_JUMP = 0.75
"""If one of n ranks jumps, the others' distances move by 1/(n-1) of the jump, so only the largest jumps count."""


def clock_jumps(solved: Solution, ties: Ties, ranks: int) -> Ints:
    """Return the clock jump of each rank in ns, or 0."""
    collectives = ties.take(~ties.is_transfer)
    distance, round_ns = _distances(solved, collectives), _rounds_ns(solved, collectives)
    jumps = np.zeros(ranks, np.int64)
    for number, members in rows_by_code(collectives.row).items():
        order = np.argsort(collectives.end[members], kind="stable")
        least_ns = max(_NOTABLE_NS, float(np.median(round_ns[members])))
        jumps[number] = _jump(distance[members][order], least_ns)
    return np.where(np.abs(jumps) >= _SAME_JUMP * np.abs(jumps).max(initial=0), jumps, 0)


def apart_ranks(solved: Solution, ties: Ties) -> Flags:
    """Mark ranks whose ends are always equally far from those of others with the same clock: it is not the same.

    Members may wait longer for a late rank than their clocks differ. Then no call seems to end before it starts.
    """
    is_on_one_clock = is_uniform(ties.call, solved.domain[ties.row], ties.calls)[ties.call]
    shared = ties.take(is_on_one_clock & ~ties.is_transfer)
    is_apart = np.zeros(len(solved.domain), bool)
    if not shared.calls:
        return is_apart
    distance, round_ns = shared.end - middles(shared.call, shared.end)[0][shared.call], _rounds_ns(solved, shared)
    for rank, members in rows_by_code(shared.row).items():
        level = float(np.median(distance[members]))
        spread = float(np.median(np.abs(distance[members] - level)))
        least_ns = max(_APART_NS, float(np.median(round_ns[members])))
        is_apart[rank] = len(members) >= 2 * _FEWEST and abs(level) > least_ns and spread <= _SPREAD * abs(level)
    return is_apart


def separate_hosts(start: Solution, ties: Ties, is_unnamed: Flags) -> Ints:
    """Return the clocks of all ranks, where groups of ranks without a host name have several if their ends are apart.

    Two hosts with few calls between them may contradict no call, because the members wait longer than their clocks
    differ. But the offsets of their ranks, fitted one by one, then form groups. Groups are separate clocks if at least
    two calls connect them, all with about the same difference. A rank alone needs as many as in `apart_ranks`, and a
    larger difference, because the timestamps of single devices are less exact.
    """
    ranks = np.arange(len(start.domain))
    fitted = solve(Solution.alone(ranks, ties), ties)
    order = np.lexsort((fitted.offset_ns, fitted.component, start.domain))
    is_alike = (np.diff(start.domain[order]) == 0) & (np.diff(fitted.component[order]) == 0)
    is_alike &= is_unnamed[order][1:]
    gap_ns = np.append(0, np.where(is_alike, np.diff(fitted.offset_ns[order]), 0))
    is_cut = gap_ns > _APART_NS
    # Smaller gaps separate hosts if the ranks of each host are much closer to each other.
    closest_ns = gap_ns[gap_ns > _NOTABLE_NS].min(initial=_APART_NS)
    if gap_ns[gap_ns < closest_ns].max(initial=0) <= _SPREAD * closest_ns:
        is_cut |= gap_ns >= closest_ns
    domain = start.domain.copy()
    domain[order] += (int(domain.max(initial=0)) + 1) * np.cumsum(is_cut)
    domain = numbered(domain)[1]
    between = ties.take(is_uniform(ties.call, start.domain[ties.row], ties.calls)[ties.call]).across(domain)
    has_alone = np.bincount(domain).min() == 1
    fewest, apart_ns = (2 * _FEWEST, _APART_NS) if has_alone else (2, _NOTABLE_NS)
    if between.calls < fewest or between.is_transfer.any():
        return start.domain
    solved = solve(Solution.alone(domain, ties), ties)
    least_ns = max(apart_ns, float(np.median(_rounds_ns(solved, between))))
    gaps_ns = gap_ns[is_cut]
    is_constant = np.median(solved.disagreement(between)) <= _SPREAD * gaps_ns.min()
    return domain if gaps_ns.min() > least_ns and is_constant else start.domain


def _distances(solved: Solution, ties: Ties) -> Floats:
    """Return the distance of each member's end from the mean end of the other members."""
    end, calls = solved.align(ties, ties.end), ties.calls
    anchor = per_code(ties.call, end, np.minimum, calls)[ties.call]
    own = (end - anchor).astype(float)
    n_others = np.maximum(np.bincount(ties.call, minlength=calls)[ties.call] - 1, 1)
    return np.asarray(own - (np.bincount(ties.call, own, calls)[ties.call] - own) / n_others)


def _rounds_ns(solved: Solution, ties: Ties) -> Floats:
    """Return the duration of a round of each member's call, if it is a ring of 2 (n - 1) rounds."""
    last_start = per_code(ties.call, solved.align(ties, ties.start), np.maximum, ties.calls)
    first_end = per_code(ties.call, solved.align(ties, ties.end), np.minimum, ties.calls)
    n_others = np.maximum(np.bincount(ties.call, minlength=ties.calls) - 1, 1)
    return np.asarray(np.maximum(first_end - last_start, 0) / (2 * n_others))[ties.call]


def _jump(distance: Floats, least_ns: float) -> int:
    if len(distance) < 2 * _FEWEST:
        return 0
    near = min(_NEAR, len(distance) // 2)
    # Levels of the calls from each place on. The median ignores single calls that end late.
    level = np.median(sliding_window_view(distance, near), axis=1)
    place = near + int(np.argmax(np.abs(level[near:] - level[:-near])))
    before, after = distance[max(place - _SIDE, 0) : place], distance[place : place + _SIDE]
    change = float(np.median(after) - np.median(before))
    spread = max(float(np.median(np.abs(side - np.median(side)))) for side in (before, after))
    return round(change) if abs(change) > least_ns and spread <= _SPREAD * abs(change) else 0
