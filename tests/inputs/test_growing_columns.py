"""Growing columns: they return what was added, across every seam."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs import growing
from usp_prof.inputs.growing import (
    ArgumentTexts,
    Kinds,
    NarrowNumbers,
    Numbers,
    Texts,
    plain_text,
)
from usp_prof.inputs.kineto import nanoseconds
from usp_prof.inputs.kineto.wire import category_text


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))))
def test_numbers_are_collected_in_order(pieces: list[list[int]]) -> None:
    column = Numbers(np.int64)
    for piece in pieces:
        column.add(np.array(piece, np.int64))
    assert column.array().tolist() == [number for piece in pieces for number in piece]


@given(st.lists(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)))))
def test_narrow_numbers_are_collected_in_order(pieces: list[list[int]]) -> None:
    column = NarrowNumbers()
    for piece in pieces:
        column.add(np.array(piece, np.int64))
    numbers = [number for piece in pieces for number in piece]
    assert column.array().tolist() == numbers
    assert (column.array().itemsize == 4) == all(-(2**31) <= number < 2**31 for number in numbers)


@given(st.lists(st.lists(st.text(alphabet="ab", max_size=2))))
def test_texts_are_collected_in_order(pieces: list[list[str]]) -> None:
    column = Texts()
    for piece in pieces:
        assert len(column.add(piece)) == len(piece)
    assert column.array(plain_text).to_pylist() == [text for piece in pieces for text in piece]


def test_values_with_equal_text_become_one() -> None:
    column = Texts()
    column.add(["Kernel", "kernel", "Runtime", None, ""])
    made = column.array(category_text)
    assert made.to_pylist() == ["kernel", "kernel", "cuda_runtime", "", ""]
    assert made.dictionary.to_pylist() == ["kernel", "cuda_runtime", ""]


@given(st.lists(st.lists(st.tuples(st.sampled_from("XiB"), st.sampled_from(["Kernel", "kernel", 1, 1.0, None])))))
def test_columns_that_share_codes_equal_separate_columns(pieces: list[list[tuple[str, object]]]) -> None:
    together, phases, categories = Kinds(lambda key: key[1] == "kernel", lambda key: key[0] == "B"), Texts(), Texts()
    for piece in filter(None, pieces):
        columns = [list(column) for column in zip(*piece, strict=True)]
        codes = together.look_up(*columns)
        assert together.marked(0, codes).tolist() == [value == "kernel" for _, value in piece]
        begins = together.marked(1, codes)
        assert begins.tolist() == [phase == "B" for phase, _ in piece]
        together.add(codes[~begins])
        for column, values in zip((phases, categories), columns, strict=True):
            column.add([value for value, phase in zip(values, columns[0], strict=True) if phase != "B"])
    made = together.arrays([plain_text, category_text])
    assert made == [phases.array(plain_text), categories.array(category_text)]


@pytest.mark.parametrize("chunk", [1, 10, 1 << 30])
def test_arguments_begin_a_new_array_before_offsets_run_out(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(growing, "CHUNK", chunk)
    column = ArgumentTexts()
    for piece in ([b'{"a": 1}', b""], [], [b'{"b": "\xc3\xbc"}']):
        column.add(b"".join(piece), np.array([len(text) for text in piece], np.int32))
    made = column.array()
    assert made.to_pylist() == ['{"a": 1}', "", '{"b": "ü"}']
    assert (made.num_chunks == 1) == (chunk > 10)


def test_unusual_numbers_as_text_are_read_or_absent() -> None:
    texts = [b"1.5", b"", b"1e3", b"nan", b'"2.001"', b"null", b"-1.0005", b"1e30", b"\xff", b"1e999999"]
    ns, finer = nanoseconds.from_texts(texts)
    absent = int(nanoseconds.ABSENT)
    assert ns.tolist() == [1500, absent, 1_000_000, absent, 2001, absent, -1000, absent, absent, absent]
    assert finer == 1


def test_float_times_become_nanoseconds() -> None:
    ns, finer = nanoseconds.from_floats(np.array([1.001, -0.5, np.nan, np.inf, 1e300, 8796093022207.999]))
    absent = int(nanoseconds.ABSENT)
    assert ns.tolist() == [1001, -500, absent, absent, absent, 8796093022207999]
    assert finer == 0


@given(st.integers(-(2**53), 2**53))
def test_every_nanosecond_below_the_bound_survives_a_float(ns: int) -> None:
    us = float(f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}")
    got, finer = nanoseconds.from_floats(np.array([us]))
    assert nanoseconds.too_large_for_floats(np.array([us])) is (abs(us) >= 2.0**43)
    if abs(us) < 2.0**43:
        assert got.tolist() == [ns]
        assert finer == 0
