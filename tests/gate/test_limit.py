from __future__ import annotations

import pytest

from usp_prof.gate.judgment import Limit, Scale, parse_limit
from usp_prof.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("2%", Limit(0.02, Scale.RELATIVE)),
        (" 1.5 pp", Limit(0.015, Scale.ABSOLUTE)),
        ("4096", Limit(4096, Scale.ABSOLUTE)),
        ("0", Limit(0, Scale.ABSOLUTE)),
    ],
)
def test_limits_are_parsed(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "two", "-1%", "nan", "inf%", "1x"])
def test_invalid_limits_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a limit"):
        parse_limit(text)


def test_limits_are_written_as_they_are_read() -> None:
    assert str(Limit(0.02, Scale.RELATIVE)) == "2%"
    assert str(Limit(0.5, Scale.ABSOLUTE).times(3)) == "1.5"
