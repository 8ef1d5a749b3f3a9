"""Do exported ranges nest on every lane, whatever was recorded?"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.tables._chrome import nesting_lanes

RANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 25)), min_size=1, max_size=60)


@given(RANGES)
def test_ranges_of_one_lane_never_cross(ranges: list[tuple[int, int, int]]) -> None:
    track, start, length = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    lanes = nesting_lanes(track, start, length)
    for a, (track_a, start_a, length_a) in enumerate(ranges):
        for b, (track_b, start_b, length_b) in enumerate(ranges):
            if track_a == track_b and lanes[a] == lanes[b] and start_a < start_b < start_a + length_a:
                assert start_b + length_b <= start_a + length_a


def test_what_nests_stays_on_the_thread_itself() -> None:
    start, length = np.array([0, 1, 2, 10]), np.array([10, 5, 2, 3])
    assert nesting_lanes(np.zeros(4, np.int64), start, length).tolist() == [0, 0, 0, 0]


def test_what_crosses_gets_a_lane() -> None:
    start, length = np.array([0, 5, 12]), np.array([10, 10, 1])
    assert nesting_lanes(np.zeros(3, np.int64), start, length).tolist() == [0, 1, 0]
