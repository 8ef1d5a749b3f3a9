"""Repetition: whole repeats are found, and nothing if nothing clearly repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from usp_prof.columns.repetition import find_repetition, repetition_at

LAYERS, WIDTH = 6, 9
FORWARD = [0, *([*range(1, WIDTH + 1)] * LAYERS), 20, 21]
BACKWARD = [22, *([*range(30, 30 + WIDTH)] * LAYERS), 23]
OPTIMIZER = [40, 41, 41, 42]
STEP = [*FORWARD, *BACKWARD, *OPTIMIZER]


def seek(symbols: list[int], **options: int) -> list[tuple[int, int]] | None:
    codes = np.array(symbols, np.int64)
    begin = np.where(codes == FORWARD[0], 1.0, 0.0)
    trained = [codes == OPTIMIZER[-1], (codes >= 22) & (codes < 40)]
    repetition = find_repetition(codes, begin, trained, **options)
    return None if repetition is None else list(zip(repetition.start.tolist(), repetition.end.tolist(), strict=True))


def test_steps_are_found_from_their_beginning_to_their_end() -> None:
    size = len(STEP)
    assert seek(STEP * 4) == [(size * n, size * (n + 1)) for n in range(4)]


@pytest.mark.slow
@given(count=st.integers(3, 7), head=st.integers(0, len(STEP) - 1), tail=st.integers(0, len(STEP) - 1))
def test_ragged_ends_are_no_repeats(count: int, head: int, tail: int) -> None:
    size = len(STEP)
    # A head and a tail that together are nearly a step may be one step with another start.
    assume(not head or not tail or head + tail < 0.9 * size)
    symbols = STEP[size - head :] + STEP * count + STEP[:tail]
    repeats = seek(symbols)
    assert repeats is not None
    # A head or tail that lacks less than a twentieth of a step counts as a step.
    expected = [(head + size * n, head + size * (n + 1)) for n in range(count)]
    assert [pair for pair in repeats if pair in expected] == expected
    assert len(repeats) <= count + (head > 0.9 * size) + (tail > 0.9 * size)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_a_step_may_have_a_few_extra_symbols(seed: int, extra: int) -> None:
    """Two in 26 kinds of symbols: with three (more than a tenth) two steps may by chance be steadier than one."""
    noise = np.random.default_rng(seed)
    symbols = []
    for _ in range(5):
        step = list(STEP)
        for _ in range(noise.integers(0, extra + 1)):
            step.insert(int(noise.integers(1, len(step))), int(noise.integers(1, 10)))
        symbols += step
    repeats = seek(symbols)
    assert repeats is not None
    assert len(repeats) >= 2  # if every window is damaged somewhere, the rest stays outside
    # A repeat that starts inside a step contains the end of one step and the start of the next.
    assert all(abs(end - start - len(STEP)) <= 2 * extra for start, end in repeats)


@given(st.lists(st.integers(0, 40), max_size=400))
def test_noise_does_not_repeat(symbols: list[int]) -> None:
    noise = np.random.default_rng(len(symbols))
    assert seek([*symbols, *noise.integers(50, 400, 600).tolist()]) is None


@pytest.mark.parametrize(
    "symbols",
    [
        STEP,  # the layers of one step repeat, the step does not
        FORWARD,
        FORWARD[:-2],
        [0, *([1, 2, 3, 4, 5, 6] * 40), 7, 8, 9],  # one pass through many layers
        [1, 2, 3],
        [],
    ],
)
def test_repeats_within_one_step_are_no_steps(symbols: list[int]) -> None:
    assert seek(symbols) is None


def test_micro_batches_are_no_steps() -> None:
    step = [*FORWARD, *BACKWARD] * 4 + OPTIMIZER
    repeats = seek(step * 3)
    assert repeats is not None
    assert [end - start for start, end in repeats] == [len(step)] * 3


def test_symbols_before_and_after_the_steps_are_excluded() -> None:
    assert seek([*range(100, 140), *(STEP * 5)]) == [(40 + len(STEP) * n, 40 + len(STEP) * (n + 1)) for n in range(5)]
    assert seek([*(STEP * 5), *range(100, 140)]) is None  # the symbols after it belong to no step


def test_few_repeats_can_be_refused() -> None:
    assert seek(STEP * 2) is not None
    assert seek(STEP * 2, least=3) is None


def test_given_boundaries_are_judged_by_the_same_rule() -> None:
    codes, size = np.array(STEP * 3, np.int64), len(STEP)
    repetition = repetition_at(codes, np.array([0, size, 2 * size]))
    assert repetition is not None
    assert len(repetition) == 3
    assert repetition.end.tolist() == [size, 2 * size, 3 * size]
    assert repetition_at(codes, np.array([0, 40, 2 * size])) is None
    assert repetition_at(codes, np.array([0, 0, size])) is None
    assert repetition_at(codes, np.array([size])) is None


def test_repetition_is_not_searched_if_the_count_table_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("usp_prof.columns.repetition._CELLS", 10)
    assert seek(STEP * 4) is None
