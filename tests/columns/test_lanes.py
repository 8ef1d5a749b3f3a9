from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.lanes import split_lanes

Range = st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 12))


def test_overlap_opens_a_lane_and_touching_does_not() -> None:
    start, end = np.array([0, 5, 10, 12]), np.array([10, 12, 20, 15])
    assert split_lanes(np.zeros(4, np.int64), start, end).tolist() == [0, 1, 0, 1]


def test_many_more_overlaps_than_usual_follow_the_same_rule() -> None:
    start = np.r_[np.arange(300), 350, 2_000]
    end = np.r_[np.arange(300) + 400, 351, 2_001]
    expected = [*range(300), 300, 0]
    assert split_lanes(np.zeros(302, np.int64), start, end).tolist() == expected


def test_no_ranges_need_no_lanes() -> None:
    nothing = np.array([], dtype=np.int64)
    assert split_lanes(nothing, nothing, nothing).tolist() == []


@given(st.lists(Range, max_size=60))
def test_lanes_are_free_of_overlap_and_first_come_first_served(ranges: list[tuple[int, int, int]]) -> None:
    track = np.array([r[0] for r in ranges], dtype=np.int64)
    start = np.array([r[1] for r in ranges], dtype=np.int64)
    end = start + np.array([r[2] for r in ranges], dtype=np.int64)
    got = split_lanes(track, start, end)
    free: dict[int, list[int]] = {}
    for i in np.lexsort((end, start, track)):
        lanes = free.setdefault(int(track[i]), [])
        lane = next((k for k, until in enumerate(lanes) if until <= start[i]), len(lanes))
        lanes[lane : lane + 1] = [int(end[i])]
        assert got[i] == lane
