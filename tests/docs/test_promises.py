"""Promises and limits: each names an existing test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text()


def test_every_named_test_exists() -> None:
    paths = set(re.findall(r"`((?:tests|scripts)/[^`]+)`", PAGE))
    assert paths
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


def test_every_promise_names_a_test() -> None:
    promises = PAGE.split("## Checked values")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    assert [row for row in rows if not re.search(r"`(tests|scripts)/", row)] == []
