"""Replay rounds of a graph: the measured order gives the same result as round by round."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.replay.plan import _round_by_round, _rounds

PAIRS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] != pair[1]), max_size=20)


def needs(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return each dependency once, sorted by its source."""
    source, target = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2).T
    return source, target


@given(PAIRS)
def test_segments_that_wait_only_for_earlier_ones_get_the_same_rounds(pairs: list[tuple[int, int]]) -> None:
    source, target = needs([(min(pair), max(pair)) for pair in pairs])
    rounds = _rounds(source, target, 9)
    assert rounds.tolist() == _round_by_round(source, target, 9).tolist()


@given(PAIRS)
def test_every_segment_has_a_round_and_only_cycles_break_a_dependency(pairs: list[tuple[int, int]]) -> None:
    source, target = needs(pairs)
    rounds = _rounds(source, target, 9)
    reached = np.zeros((9, 9), bool)
    reached[source, target] = True
    for through in range(9):
        reached |= reached[:, [through]] & reached[[through]]
    circles = reached.diagonal()
    after_circle = circles | reached[circles].any(axis=0)
    assert (rounds >= 0).all()
    free = ~after_circle[target]
    assert (rounds[source[free]] < rounds[target[free]]).all()
