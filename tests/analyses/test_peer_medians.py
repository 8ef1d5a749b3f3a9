"""Medians over peers: equal to those computed row by row, also if ranks lack steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.analyses.measures.lateness import Peers, peer_medians
from usp_prof.analyses.measures.partition import Partition

if TYPE_CHECKING:
    from random import Random

PEERS = Peers({0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 7: 2}, [[0, 1, 2], [3, 4], [7]])
CELLS = st.tuples(st.sampled_from(sorted(PEERS.kind_of_rank)), st.integers(5, 9))
EMPTY = np.zeros(0, np.int64)


@given(
    st.sets(st.tuples(st.sampled_from(sorted(PEERS.kind_of_rank)), st.integers(5, 9))),
    st.randoms(use_true_random=False),
)
def test_medians_are_computed_per_row(cells: set[tuple[int, int]], draw: Random) -> None:
    order = sorted(cells)
    draw.shuffle(order)
    rank, step = (np.array([cell[k] for cell in order], np.int64) for k in (0, 1))
    parts = Partition((), rank, step, *[EMPTY] * (len(Partition.__dataclass_fields__) - 3))
    figures = np.array([[draw.randrange(100), draw.randrange(100)] for _ in order], np.int64).reshape(-1, 2)
    medians = peer_medians(parts, PEERS, figures)
    for row, (own, number) in enumerate(order):
        theirs = [place for place, (r, s) in enumerate(order) if r in PEERS.of_rank(own) and s == number]
        wanted = np.median(figures[theirs], axis=0) if theirs else np.full(2, np.nan)
        np.testing.assert_array_equal(medians[row], wanted)
