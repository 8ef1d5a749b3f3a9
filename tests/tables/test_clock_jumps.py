"""Clock jumps: a rank whose ends move by more than a round of its collectives, which may last long on a slow link."""

from __future__ import annotations

import numpy as np
import pytest

from usp_prof.tables.matching.clock_fit import Solution
from usp_prof.tables.matching.clock_jumps import clock_jumps
from usp_prof.tables.matching.ties import Ties

MS = 1_000_000
RANKS, CALLS = 4, 12


def calls(duration_ms: int, late_ms: int) -> Ties:
    """Return collectives that rank 1 leaves late in the first half of a run, and rank 2 in the second half."""
    call, row = np.divmod(np.arange(RANKS * CALLS), RANKS)
    start = call * 2 * duration_ms * MS
    is_late = row == np.where(call < CALLS // 2, 1, 2)
    end = start + duration_ms * MS + is_late * late_ms * MS
    return Ties(call, row, start, end, np.zeros(len(call), bool))


@pytest.mark.parametrize(("duration_ms", "late_ms", "jumps"), [(400, 16, False), (1, 16, True), (40, 16, True)])
def test_ends_within_a_round_of_a_slow_collective_are_no_jump(duration_ms: int, late_ms: int, jumps: bool) -> None:
    ties = calls(duration_ms, late_ms)
    solved = Solution.alone(np.zeros(RANKS, np.int64), ties)
    assert clock_jumps(solved, ties, RANKS).any() == jumps
