from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.lanes import nest


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_nested_ranges_have_depth_and_parent() -> None:
    tracks = nest(ints(5, 5, 5, 9), ints(0, 10, 20, 12), ints(100, 30, 5, 3))
    assert tracks.depth.tolist() == [0, 1, 2, 0]
    assert tracks.parent.tolist() == [-1, 0, 1, -1]


def test_touching_ranges_are_neighbors() -> None:
    tracks = nest(ints(1, 1, 1), ints(0, 10, 10), ints(10, 10, 0))
    assert tracks.depth.tolist() == [0, 0, 1]
    assert tracks.parent.tolist() == [-1, -1, 1]


def test_innermost_range_is_found_at_edges_and_on_unknown_tracks() -> None:
    tracks = nest(ints(1, 1), ints(100, 110), ints(50, 10))
    at = ints(99, 100, 110, 119, 120, 149, 150, 10**15)
    assert tracks.innermost(np.ones(len(at), np.int64), at).tolist() == [-1, 0, 1, 1, 0, 0, -1, -1]
    assert tracks.innermost(ints(0, 2), ints(110, 110)).tolist() == [-1, -1]


def test_empty_tables_have_no_nesting() -> None:
    tracks = nest(ints(), ints(), ints())
    assert tracks.innermost(ints(1), ints(5)).tolist() == [-1]


def test_absurd_times_do_not_overflow() -> None:
    tracks = nest(np.arange(40, dtype=np.int64), np.arange(40, dtype=np.int64) * 2**56, np.full(40, 10))
    assert (tracks.depth == 0).all()


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    ranges: list[tuple[int, int, int]] = []

    def fill(track: int, low: int, high: int, level: int) -> None:
        while low < high and len(ranges) < 25 and draw(st.booleans()):
            a = draw(st.integers(low, high - 1))
            b = draw(st.integers(a + 1, high))
            ranges.append((track, a, b))
            if level < 4:
                fill(track, a, b, level + 1)
            low = b

    for track in range(draw(st.integers(1, 3))):
        fill(track * 7, 0, 30, 0)
    return draw(st.permutations(ranges))


@given(nested())
def test_nesting_agrees_with_brute_force(ranges: list[tuple[int, int, int]]) -> None:
    track, start, end = (np.array([r[k] for r in ranges], dtype=np.int64) for k in range(3))
    tracks = nest(track, start, end - start)
    for i, (t, a, b) in enumerate(ranges):
        if ranges.count((t, a, b)) == 1:
            around = [r for r in ranges if r[0] == t and r[1] <= a and b <= r[2] and r != (t, a, b)]
            parent = ranges[tracks.parent[i]] if tracks.parent[i] >= 0 else None
            assert tracks.depth[i] == len(around)
            assert parent == (min(around, key=lambda r: r[2] - r[1]) if around else None)
    at = np.arange(-1, 32)
    for t in set(track.tolist()):
        for moment, got in zip(at, tracks.innermost(np.full(len(at), t), at), strict=True):
            inner = [r for r in ranges if r[0] == t and r[1] <= moment < r[2]]
            assert (ranges[got] if got >= 0 else None) == (min(inner, key=lambda r: r[2] - r[1]) if inner else None)


def test_a_range_that_reaches_1_ns_into_the_next_does_not_contain_it() -> None:
    """A send and a receive with a record each; starts and durations were rounded separately."""
    send, record, receive, other_record = (0, 11), (2, 7), (10, 13), (12, 9)
    starts, durations = zip(send, record, receive, other_record, strict=True)
    tracks = nest(ints(1, 1, 1, 1), ints(*starts), ints(*durations), rounded=True)
    assert tracks.parent.tolist() == [-1, 0, -1, 2]
    assert tracks.innermost(ints(1, 1), ints(15, 22)).tolist() == [3, 2]
