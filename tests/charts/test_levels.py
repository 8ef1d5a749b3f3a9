"""Levels of detail: a million slices drawn at any zoom."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.report.sections.timeline import Slices, coarsen, levels

one_slice = st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(1, 60), st.integers(0, 2), st.integers(0, 5))


def slices(rows: list[tuple[int, int, int, int, int]]) -> Slices:
    row, start, length, role, name = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Slices(row, start, start + length, role, name)


def busy(level: Slices) -> dict[int, int]:
    return {int(row): int((level.end_ns - level.start_ns)[level.row == row].sum()) for row in np.unique(level.row)}


@given(st.lists(one_slice, min_size=1, max_size=60), st.integers(1, 200))
def test_a_coarser_level_keeps_each_rows_busy_time(rows: list[tuple[int, int, int, int, int]], width: int) -> None:
    fine = slices(rows)
    coarse = coarsen(fine, width)
    assert busy(coarse) == busy(fine)
    assert len(coarse) <= len(fine)
    assert set(coarse.role.tolist()) <= set(fine.role.tolist())


@given(st.lists(one_slice, min_size=1, max_size=60), st.integers(2, 200))
def test_long_slices_are_never_merged(rows: list[tuple[int, int, int, int, int]], width: int) -> None:
    fine = slices(rows)
    long = {(r, s, e) for r, s, e in zip(fine.row, fine.start_ns, fine.end_ns, strict=True) if e - s >= width}
    coarse = coarsen(fine, width)
    assert long <= set(zip(coarse.row, coarse.start_ns, coarse.end_ns, strict=True))


def test_a_merged_slice_is_named_after_its_longest_part() -> None:
    merged = coarsen(slices([(0, 10, 2, 1, 7), (0, 13, 5, 2, 8), (0, 19, 1, 0, 9)]), 100)
    assert (merged.start_ns.tolist(), merged.end_ns.tolist()) == ([10], [18])
    assert (merged.role.tolist(), merged.name.tolist()) == ([2], [8])


def test_levels_end_with_the_slices_themselves() -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.integers(0, 10_000_000, 5000))
    zeros = np.zeros(5000, np.int64)
    fine = Slices(rng.integers(0, 2, 5000), start, start + 500, zeros, zeros)
    made, starts = levels(fine, 100_000)
    assert starts[0] == 0
    assert starts[-1] == len(made)
    assert starts[-1] - starts[-2] == len(fine)
    for low, high in itertools.pairwise(starts):
        assert (np.diff(made.start_ns[low:high]) >= 0).all()


def test_the_budget_bounds_all_but_the_first_level() -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.integers(0, 10_000_000, 5000))
    zeros = np.zeros(5000, np.int64)
    made, starts = levels(Slices(zeros, start, start + 500, zeros, zeros), 3000)
    assert len(made) <= 3000
    assert len(starts) == 2
