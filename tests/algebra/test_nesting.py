"""Nesting against a search over all intervals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.algebra.nesting import innermost, parents


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw properly nested, distinct ranges by cutting a span again and again."""
    found: list[tuple[int, int]] = []
    spans = [(0, 60)]
    for _ in range(draw(st.integers(0, 14))):
        low, high = spans[draw(st.integers(0, len(spans) - 1))]
        if high - low < 3:
            continue
        a = draw(st.integers(low, high - 2))
        b = draw(st.integers(a + 1, high - 1))
        if any(x < b and a < y and not (x <= a and b <= y) and not (a <= x and y <= b) for x, y in found):
            continue
        if (a, b) not in found:
            found.append((a, b))
            spans.append((a, b))
    return found


def enclosing(ranges: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    return sorted((r for r in ranges if r[0] <= low and high <= r[1] and r != (low, high)), key=lambda r: r[1] - r[0])


@given(nested(), st.randoms(use_true_random=False))
def test_parents_and_innermost_are_the_smallest_that_hold(ranges: list[tuple[int, int]], random: object) -> None:
    random.shuffle(ranges)  # type: ignore[attr-defined]
    low, high = np.array([r[0] for r in ranges], int), np.array([r[1] for r in ranges], int)
    for row, parent in enumerate(parents(low, high).tolist()):
        holders = enclosing(ranges, *ranges[row])
        assert (ranges[parent] if parent >= 0 else None) == (holders[0] if holders else None)
    moments = np.arange(62)
    for moment, found in enumerate(innermost(low, high, moments).tolist()):
        holders = sorted((r for r in ranges if r[0] <= moment < r[1]), key=lambda r: r[1] - r[0])
        assert (ranges[found] if found >= 0 else None) == (holders[0] if holders else None)


def test_many_siblings_resolve_quickly() -> None:
    low = np.arange(0, 400_000, 2)
    everything = np.concatenate([[-1], low]), np.concatenate([[400_001], low + 1])
    assert (parents(*everything)[1:] == 0).all()
