"""Promises and limits: each names an existing test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["promises.md", "limits.md"])
def test_every_named_test_is_there(page: str) -> None:
    named = set(re.findall(r"`((?:tests|scripts)/[^`]+)`", (ROOT / "docs" / page).read_text()))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_promise_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    assert [row for row in rows if not re.search(r"`(tests|scripts)/", row)] == []
