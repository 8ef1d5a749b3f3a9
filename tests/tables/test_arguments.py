"""Do arguments come from the rows that were asked for, in their order, however many chunks the text lies in?"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.schema import Kind
from usp_prof.tables import arguments
from usp_prof.tables.arguments import Field, read_arguments

FIELDS = (Field("number", "n"), Field("text", "t", Kind.TEXT), Field("coded", "t", Kind.TEXT, coded=True))


@pytest.mark.parametrize("batch", [1, 3, 1 << 15])
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), st.data())
def test_any_rows_of_any_chunks(batch: int, chunks: list[list[int]], data: st.DataObject) -> None:
    texts = [pa.array([f'{{"n": {n}, "t": "x{n}"}}' for n in chunk], pa.string()) for chunk in chunks]
    numbers = [n for chunk in chunks for n in chunk]
    rows = data.draw(st.lists(st.integers(0, len(numbers) - 1))) if numbers else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_BATCH", batch)
        patch.setattr(arguments, "_SPAN", 40 * batch)
        found = read_arguments(pa.chunked_array(texts, pa.string()), np.array(rows, np.int64), FIELDS)
    assert found["number"].tolist() == [numbers[row] for row in rows]
    assert found["text"].to_pylist() == [f"x{numbers[row]}" for row in rows]
    assert found["coded"].to_pylist() == [f"x{numbers[row]}" for row in rows]
    assert pa.types.is_dictionary(found["coded"].type)
