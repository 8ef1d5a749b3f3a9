"""Clock jumps: ranks whose collectives end at a different distance from their peers' after some moment.

Members of a collective end almost together. A clock that jumps moves all later ends by the same amount:

    end of rank - mean end of the other members:   +3  -2  +1   0 | 50012  49998  50003     (microseconds)

The largest change of the level (median) is a jump if it is large compared with the spread on either side, and with a
round of the collectives: members of a ring may end one round apart, which is long on a slow link. A constant distance
is that of two clocks.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import first_of_run, is_uniform, middles, numbered, per_code, rows_by_code, sorted_by
from usp_prof.columns.statistics import mad
from usp_prof.tables.communication.posts import CLOSED_LATE_NS
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


def clock_jumps(solved: Solution, ties: Ties, ends_late: Flags) -> Ints:
    """Return the clock jump of each rank in ns, or 0; `ends_late` marks ranks whose ranges threads of the CPU end."""
    collectives = ties.take(~ties.is_transfer)
    distance, round_ns = _distances(solved, collectives), _rounds_ns(solved, collectives)
    jumps = np.zeros(len(ends_late), np.int64)
    for rank, members in rows_by_code(collectives.row).items():
        in_order = sorted_by(collectives.end, members)
        floor_ns = CLOSED_LATE_NS if ends_late[rank] else _NOTABLE_NS
        jumps[rank] = _jump(distance[in_order], _least_ns(floor_ns, round_ns[members]))
    return np.where(np.abs(jumps) >= _SAME_JUMP * np.abs(jumps).max(initial=0), jumps, 0)


def change_at(solved: Solution, ties: Ties, row: int, moment_ns: int) -> float | None:
    """Return by how much a rank's collectives end further from its peers' after a moment than before.

    `row` is the rank's index, and the moment is on its own clock. `None` with too few calls on either side.
    """
    collectives = ties.take(~ties.is_transfer)
    own = np.flatnonzero(collectives.row == row)
    own = sorted_by(collectives.end, own)
    distance, is_after = _distances(solved, collectives)[own], collectives.end[own] > moment_ns
    before, after = distance[~is_after][-_SIDE:], distance[is_after][:_SIDE]
    if min(len(before), len(after)) < _FEWEST:
        return None
    return float(np.median(after) - np.median(before))


def apart_ranks(solved: Solution, ties: Ties) -> Flags:
    """Mark ranks whose ends are always equally far from those of others with the same clock: it is not the same.

    Members may wait longer for a late rank than their clocks differ. Then no call seems to end before it starts.
    """
    is_apart = np.zeros(len(solved.domain), bool)
    shared = ties.take(_is_on_one_clock(solved.domain, ties) & ~ties.is_transfer)
    if not shared.calls:
        return is_apart
    distance, round_ns = shared.end - middles(shared.call, shared.end)[0][shared.call], _rounds_ns(solved, shared)
    for rank, members in rows_by_code(shared.row).items():
        if len(members) >= 2 * _FEWEST:
            level = abs(float(np.median(distance[members])))
            is_far = level > _least_ns(_APART_NS, round_ns[members])
            is_apart[rank] = is_far and mad(distance[members]) <= _SPREAD * level
    return is_apart


def separate_hosts(start: Solution, ties: Ties, is_unnamed: Flags) -> Ints:
    """Return the clock number of each rank, where ranks without a host name have several if their ends are apart.

    Two hosts with few calls between them may contradict no call, because the members wait longer than their clocks
    differ. But the offsets of their ranks, fitted one by one, then form groups. Groups are separate clocks if at least
    two calls connect them, all with about the same difference. A rank alone needs as many as in `apart_ranks`, and a
    larger difference, because the timestamps of single devices are less exact.
    """
    domain, gaps_ns = _groups_by_offset(start, ties, is_unnamed)
    between = ties.take(_is_on_one_clock(start.domain, ties)).across(domain)
    has_alone = np.bincount(domain).min() == 1
    fewest, apart_ns = (2 * _FEWEST, _APART_NS) if has_alone else (2, _NOTABLE_NS)
    if between.calls < fewest or between.is_transfer.any():
        return start.domain
    solved = solve(Solution.alone(domain, ties), ties)
    is_far = gaps_ns.min() > _least_ns(apart_ns, _rounds_ns(solved, between))
    is_constant = np.median(solved.disagreement(between)) <= _SPREAD * gaps_ns.min()
    return domain if is_far and is_constant else start.domain


def _groups_by_offset(start: Solution, ties: Ties, is_unnamed: Flags) -> tuple[Ints, Ints]:
    """Split clocks of ranks without a host name where the ranks' own offsets leave a gap: clock numbers, and the gaps.

    For example, ranks 1, 3 and 4 get another clock:

        rank            0    5    2   |    1    3    4
        offset (us)     0   10   25   |  900  910  930
    """
    fitted = solve(Solution.alone(np.arange(len(start.domain)), ties), ties)
    order = np.lexsort((fitted.offset_ns, fitted.component, start.domain))
    may_differ = is_unnamed[order] & ~first_of_run(start.domain[order], fitted.component[order])
    # By place in this order: how much larger the offset is than the one before it.
    gap_ns = np.where(may_differ, np.diff(fitted.offset_ns[order], prepend=0), 0)
    is_cut = gap_ns > _APART_NS
    # Smaller gaps separate hosts if the ranks of each host are much closer to each other.
    closest_ns = gap_ns[gap_ns > _NOTABLE_NS].min(initial=_APART_NS)
    if gap_ns[gap_ns < closest_ns].max(initial=0) <= _SPREAD * closest_ns:
        is_cut |= gap_ns >= closest_ns
    domain = start.domain.copy()
    # Numbers that no clock has yet; they are numbered from 0 at the end.
    domain[order] += (int(domain.max(initial=0)) + 1) * np.cumsum(is_cut)
    return numbered(domain)[1], gap_ns[is_cut]


def _is_on_one_clock(domain: Ints, ties: Ties) -> Flags:
    """Mark the members of calls whose members are all on the same clock; `domain` is the clock of each rank."""
    return is_uniform(ties.call, domain[ties.row], ties.calls)[ties.call]


def _least_ns(floor_ns: int, round_ns: Floats) -> float:
    """Return the smallest distance that shows different clocks: more than these calls' usual round explains."""
    return max(floor_ns, float(np.median(round_ns)))


def _distances(solved: Solution, ties: Ties) -> Floats:
    """Return the distance of each member's end from the mean end of the other members."""
    end, call, calls = solved.align(ties, ties.end), ties.call, ties.calls
    # Relative to the call's first end, because a float holds a time since 1970 only to 256 ns.
    own = (end - per_code(call, end, np.minimum, calls)[call]).astype(float)
    n_others = np.maximum(np.bincount(call, minlength=calls)[call] - 1, 1)
    sum_of_others = np.bincount(call, own, calls)[call] - own
    return np.asarray(own - sum_of_others / n_others)


def _rounds_ns(solved: Solution, ties: Ties) -> Floats:
    """Return the duration of a round of each member's call, if it is a ring of 2 (n - 1) rounds."""
    last_start = per_code(ties.call, solved.align(ties, ties.start), np.maximum, ties.calls)
    first_end = per_code(ties.call, solved.align(ties, ties.end), np.minimum, ties.calls)
    n_others = np.maximum(np.bincount(ties.call, minlength=ties.calls) - 1, 1)
    return np.asarray(np.maximum(first_end - last_start, 0) / (2 * n_others))[ties.call]


def _jump(distance: Floats, least_ns: float) -> int:
    """Return the largest change of level in the distances, in order of time, or 0 if noise explains it.

    distance   +3  -2  +1   0  -1 | 50012  49998  50003  50001  50000
    level      median of `near` calls, before and after each place; the place with the largest difference is |
    """
    if len(distance) < 2 * _FEWEST:
        return 0
    near = min(_NEAR, len(distance) // 2)
    # By place: the level of the `near` calls from it on. The median ignores single calls that end late.
    level = np.median(sliding_window_view(distance, near), axis=1)
    place = near + int(np.argmax(np.abs(level[near:] - level[:-near])))
    before, after = distance[max(place - _SIDE, 0) : place], distance[place : place + _SIDE]
    change = float(np.median(after) - np.median(before))
    is_steady = max(mad(before), mad(after)) <= _SPREAD * abs(change)
    return round(change) if abs(change) > least_ns and is_steady else 0
