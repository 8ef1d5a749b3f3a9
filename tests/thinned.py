"""Sample of a long list of cases for the default suite; `scripts/test --full` runs all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
ALL = os.environ.get("USP_PROF_TESTS") == "all"


def thinned(cases: Iterable[T], every: int) -> list[T]:
    """Return one in `every` cases, including the first."""
    return list(cases)[:: 1 if ALL else every]
