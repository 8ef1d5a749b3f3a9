"""Shared fixtures for real traces: one cache, so that each set is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the cache."""
    return tmp_path_factory.mktemp("cache")
