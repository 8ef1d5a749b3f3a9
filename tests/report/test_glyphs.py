"""Bars drawn with characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from usp_prof.report.format import cells, fills


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=9), st.integers(1, 200))
def test_cells_add_up_to_the_width_and_are_near_their_share(values: list[float], width: int) -> None:
    counts = cells(values, width)
    total = sum(values)
    if total <= 0:
        assert counts == [0] * len(values)
        return
    assert sum(counts) == width
    assert all(abs(count - value / total * width) < 1 for count, value in zip(counts, values, strict=True))


def test_two_axes_have_two_fills() -> None:
    for ascii_only in (False, True):
        marks = fills(["compute", "comm:tp", "comm:dp", "memcpy", "idle:host", "idle:other"], ascii_only=ascii_only)
        assert len(set(marks)) == len(marks)
        assert all(mark.isascii() for mark in marks) or not ascii_only


def test_an_unknown_role_has_the_fill_of_idle() -> None:
    assert fills(["something"], ascii_only=True) == ["-"]
