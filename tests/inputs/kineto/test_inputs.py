"""Arguments coded piece by piece: each event's values are returned unchanged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs.growing import Combinations
from usp_prof.inputs.trace_record import RepeatedArguments

texts = st.sampled_from([b"", b"[]", b'[["\xc3\xbc"]]', b"1"])
rows = st.tuples(st.booleans(), st.tuples(texts, texts, texts))


@given(st.lists(st.lists(rows, max_size=5), max_size=4))
def test_each_row_has_the_arguments_that_were_added(
    pieces: list[list[tuple[bool, tuple[bytes, bytes, bytes]]]],
) -> None:
    growing = Combinations(3)
    for piece in pieces:
        growing.add(np.array([is_present for is_present, _ in piece], bool), [own for has, own in piece if has])
    distinct = [tuple(combination) for combination in growing.distinct()]
    expected = [own if is_present else (b"", b"", b"") for piece in pieces for is_present, own in piece]
    assert [distinct[code] for code in growing.codes()] == expected
    assert len(set(distinct)) == len(distinct)


def test_rows_can_be_selected_and_missing_arguments_are_empty() -> None:
    none = RepeatedArguments.none(2)
    assert (none.code.tolist(), none.texts.to_pylist()) == ([0, 0], ["{}"])
    assert none.select(np.array([False, True])).code.tolist() == [0]
