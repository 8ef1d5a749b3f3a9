"""Selection of steps: the same one by one and many at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.selection import Selection

bounds = st.none() | st.integers(-3, 12)


@given(st.lists(st.integers(-5, 15)), bounds, bounds)
def test_array_selection_equals_single_steps(steps: list[int], first: int | None, last: int | None) -> None:
    selection = Selection(first_step=first, last_step=last)
    is_selected = selection.takes_steps(np.array(steps, np.int64))
    assert is_selected.tolist() == [selection.takes_step(step) for step in steps]
