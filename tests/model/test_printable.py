from __future__ import annotations

import pytest

from usp_prof.model.printable import counted


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (12_345, "12,345 ranks")])
def test_counts_have_singular_and_plural(number: int, text: str) -> None:
    assert counted(number, "rank") == text
