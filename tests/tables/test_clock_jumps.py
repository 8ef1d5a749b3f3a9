"""Clock jumps: a rank whose ends move by more than a round of its collectives, which may last long on a slow link."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

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


@pytest.mark.parametrize(
    ("duration_ms", "late_ms", "on_threads", "jumps"),
    [
        (400, 16, False, False),  # within a round of a slow collective
        (1, 16, False, True),
        (40, 16, False, True),
        (1, 2, False, True),
        (1, 2, True, False),  # within the delay of a thread on a busy CPU
        (1, 16, True, True),
    ],
)
def test_ends_that_the_communication_explains_are_no_jump(
    duration_ms: int, late_ms: int, on_threads: bool, jumps: bool
) -> None:
    ties = calls(duration_ms, late_ms)
    solved = Solution.alone(np.zeros(RANKS, np.int64), ties)
    assert clock_jumps(solved, ties, np.full(RANKS, on_threads)).any() == jumps


@pytest.mark.parametrize("has_jumped", [True, False])
def test_a_pause_between_two_step_marks_is_no_jump(has_jumped: bool) -> None:
    """Rank 1's second mark begins 20 ms after its first one ended.

    If that time has passed, rank 0 waits for it. If the clock of rank 1 jumped, rank 0 does not.
    """
    late, traces = 20_000, {}
    for rank in range(2):
        trace = Trace(rank, 2, device="cpu").group("dp", [0, 1], "mesh_dp")
        for step in range(3):
            begin, own = 200_000 * step, late if rank and step else 0
            trace.step(step, begin + own, 200_000)
            for number in range(8):
                posted = begin + own + 5_000 + 20_000 * number
                ends = begin + 6_000 + 20_000 * number + (own if has_jumped else late if step else 0)
                trace.gloo("all_reduce", posted, ends - posted, group="dp", sequence=8 * step + number)
        traces[rank] = trace
    codes = {(row.code, row.rank) for row in table_set(traces).health}
    assert (("clock_jump", 1) in codes) == has_jumped
