"""Interval laws, compared with brute force on single points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.intervals import EMPTY, Intervals, union, union_by, union_of

SPAN = 40
pairs = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=12)
BASE = 1_700_000_000_123_456_789  # beyond what a float64 holds exactly


def made(ranges: list[tuple[int, int]]) -> Intervals:
    return union([BASE + a for a, _ in ranges], [BASE + b for _, b in ranges])


def points(ranges: list[tuple[int, int]]) -> set[int]:
    return {p for a, b in ranges for p in range(a, b)}


def held(intervals: Intervals) -> set[int]:
    return {
        p - BASE for a, b in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True) for p in range(a, b)
    }


def assert_normal(intervals: Intervals) -> None:
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()
    assert intervals.start.dtype == np.int64


@given(pairs)
def test_a_union_contains_exactly_the_points_of_its_parts(ranges: list[tuple[int, int]]) -> None:
    merged = made(ranges)
    assert_normal(merged)
    assert held(merged) == points(ranges)
    assert merged.length == len(points(ranges))


@given(st.lists(pairs, max_size=4))
def test_grouped_unions_equal_the_union_of_each_group(groups: list[list[tuple[int, int]]]) -> None:
    group, start, end = (
        np.array(
            [column[i] for column in [(g, BASE + a, BASE + b) for g, ranges in enumerate(groups) for a, b in ranges]],
            np.int64,
        )
        for i in range(3)
    )
    mixed = np.random.default_rng(0).permutation(len(group))
    home, low, high = union_by(group[mixed], start[mixed], end[mixed])
    assert (np.diff(home) >= 0).all()
    for g, ranges in enumerate(groups):
        assert Intervals(low[home == g], high[home == g]) == made(ranges)


@given(pairs, pairs)
def test_set_operations_match_python_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    for result, truth in (
        (made(a) | made(b), points(a) | points(b)),
        (made(a) & made(b), points(a) & points(b)),
        (made(a) - made(b), points(a) - points(b)),
    ):
        assert_normal(result)
        assert held(result) == truth


@given(pairs, st.integers(0, SPAN), st.integers(0, SPAN))
def test_windows_gaps_and_lengths_match_point_sets(ranges: list[tuple[int, int]], low: int, high: int) -> None:
    merged, window = made(ranges), set(range(low, high))
    assert held(merged.clip(BASE + low, BASE + high)) == points(ranges) & window
    assert held(union([BASE + low], [BASE + high]) - merged) == window - points(ranges)
    if low <= high:
        assert merged.within([BASE + low], [BASE + high]).tolist() == [len(points(ranges) & window)]
    assert merged.holds([BASE + low]).tolist() == [low in points(ranges)]


@given(st.lists(pairs, max_size=4))
def test_a_union_of_sets_contains_the_points_of_any_set(many: list[list[tuple[int, int]]]) -> None:
    assert held(union_of([made(ranges) for ranges in many])) == {p for ranges in many for p in points(ranges)}


def test_empty_intervals_have_no_length() -> None:
    assert len(EMPTY) == 0
    assert EMPTY.length == 0
    assert EMPTY | EMPTY == EMPTY & EMPTY == EMPTY - EMPTY
    assert EMPTY.before([3, 4]).tolist() == [0, 0]
    assert EMPTY.holds([1]).tolist() == [False]
    assert union_of([]) == EMPTY
    assert (EMPTY == 3) is False


def test_intervals_do_not_hash() -> None:
    with pytest.raises(TypeError):
        hash(EMPTY)
