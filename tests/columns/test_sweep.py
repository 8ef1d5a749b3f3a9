"""Owners of moments, compared with a walk over every moment."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.intervals import by_latest_end, by_priority, union

SPAN = 40
pairs = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=10)
tagged = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN), st.integers(0, 3)), max_size=10)


@given(st.lists(pairs, max_size=4))
def test_priority_gives_each_moment_to_the_first_set(many: list[list[tuple[int, int]]]) -> None:
    sets = [union([a for a, _ in ranges], [b for _, b in ranges]) for ranges in many]
    owners = by_priority(sets).at(np.arange(SPAN + 1)).tolist()
    for moment, owner in enumerate(owners):
        holders = [i for i, ranges in enumerate(many) if any(a <= moment < b for a, b in ranges)]
        assert owner == (holders[0] if holders else -1)


@given(tagged)
def test_latest_end_assigns_each_moment_to_the_set_that_ends_last(ranges: list[tuple[int, int, int]]) -> None:
    low, high, tag = (np.array([row[i] for row in ranges], np.int64) for i in range(3))
    labels = by_latest_end(low, high, tag)
    assert (labels.end > labels.start).all()
    assert (labels.start[1:] >= labels.end[:-1]).all()
    for moment, owner in enumerate(labels.at(np.arange(SPAN + 1)).tolist()):
        running = [(-b, t) for a, b, t in ranges if a <= moment < b]
        assert owner == (min(running)[1] if running else -1)


@given(st.lists(pairs, min_size=1, max_size=3), st.integers(0, SPAN), st.integers(0, SPAN))
def test_cuts_measure_each_label_in_each_window(
    many: list[list[tuple[int, int]]], first_cut: int, second_cut: int
) -> None:
    low, high = min(first_cut, second_cut), max(first_cut, second_cut)
    labels = by_priority([union([a for a, _ in s], [b for _, b in s]) for s in many])
    owners = labels.at(np.arange(SPAN + 1))[low:high]
    cut = labels.cut([low], [high], len(many))
    assert cut.tolist() == [[int((owners == i).sum()) for i in range(len(many))]]


def test_without_sets_everything_is_a_gap() -> None:
    labels = by_priority([])
    assert labels.at([1, 2]).tolist() == [-1, -1]
    assert labels.cut([0], [9], 0).shape == (1, 0)
    assert len(labels.times_of(0)) == 0
