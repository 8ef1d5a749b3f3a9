from __future__ import annotations

import pytest

from usp_prof.model.printable import counted


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (12_345, "12,345 ranks")])
def test_how_many_of_what(number: int, text: str) -> None:
    assert counted(number, "rank") == text
