"""Tiers of the tests: which ones `scripts/test`, `scripts/test --all` and `scripts/test --full` run.

`scripts/test` runs the folders that are not in `ONLY_IN_ALL`, without tests that have a mark of `MARKS_OF_ALL`.
`scripts/test --all` runs all tests except those marked `full`, and `scripts/test --full` runs those, too.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
TESTS = Path(__file__).parent
ONLY_IN_ALL = frozenset(
    {
        "agent",
        "benchmarks",
        "corpus",
        "dashboard",
        "docs",
        "examples",
        "from_hta",
        "learn",
        "planner",
        "record",
        "store",
        "torture",
        "trainer",
    }
)
"""Folders whose tests start processes, servers or browsers, or belong to an extra."""
MARKS_OF_ALL = frozenset({"slow", "real", "browser", "trainer"})


class Tier(StrEnum):
    """A command's share of the tests; each tier contains the previous ones."""

    TEST = "test"
    ALL = "all"
    FULL = "full"


chosen = Tier.ALL
"""Set from pytest's `--tier` before any test is collected."""


def has_folder(path: Path) -> bool:
    """Return whether the chosen tier runs tests of this file or folder."""
    return chosen is not Tier.TEST or path.parent != TESTS or path.name not in ONLY_IN_ALL


def has_marks(names: set[str]) -> bool:
    """Return whether the chosen tier runs a test with these marks."""
    left_out = {Tier.TEST: MARKS_OF_ALL | {"full"}, Tier.ALL: {"full"}, Tier.FULL: set()}[chosen]
    return not names & left_out


def thinned(cases: Iterable[T], every: int) -> list[T]:
    """Return one in `every` cases, including the first; `scripts/test --full` runs all of them."""
    return list(cases)[:: 1 if chosen is Tier.FULL else every]
