"""Inputs coded piece by piece: each event's values are returned unchanged."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs.kineto.arguments import INPUT_KEYS as KEYS
from usp_prof.inputs.kineto.arguments import GrowingInputs
from usp_prof.inputs.trace_record import Inputs

texts = st.sampled_from([b"", b"[]", b'[["\xc3\xbc"]]', b"1"])
rows = st.tuples(st.booleans(), st.tuples(texts, texts, texts), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.lists(rows, max_size=5), max_size=4))
def test_each_row_has_the_arguments_that_were_added(
    pieces: list[list[tuple[bool, tuple[bytes, bytes, bytes], int]]],
) -> None:
    growing = GrowingInputs()
    for piece in pieces:
        has_arguments = np.array([is_present for is_present, _, _ in piece], bool)
        present_rows = [(given, number) for is_present, given, number in piece if is_present]
        growing.add(
            has_arguments,
            [given for given, _ in present_rows],
            np.array([number for _, number in present_rows], np.int64),
        )
    made = growing.columns()
    expected = [
        ({key: json.loads(text) for key, text in zip(KEYS, given, strict=True) if text}, number)
        if is_present
        else ({}, -1)
        for piece in pieces
        for is_present, given, number in piece
    ]
    distinct = [json.loads(text) for text in made.texts.to_pylist()]
    assert [(distinct[code], number) for code, number in zip(made.code, made.sequence, strict=True)] == expected
    assert len({json.dumps(combination) for combination in distinct}) == len(distinct)


def test_rows_can_be_selected_and_missing_inputs_are_empty() -> None:
    growing = GrowingInputs()
    growing.add(np.array([True, True]), [(b"[1]", b"", b""), (b"[2]", b"", b"")], np.array([7, 8]))
    made = growing.columns().select(np.array([False, True]))
    assert (made.texts[int(made.code[0])].as_py(), made.sequence.tolist()) == ('{"Input Dims":[2]}', [8])
    none = Inputs.none(2)
    assert (none.code.tolist(), none.texts.to_pylist(), none.sequence.tolist()) == ([0, 0], ["{}"], [-1, -1])
