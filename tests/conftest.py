"""Shared fixtures: no deadlines for generated examples, because machines can be busy, and one browser per process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

WITHOUT_COVERAGE = (
    "corpus",
    "dashboard",
    "docs",
    "examples",
    "golden",
    "torture",
    "trainer",
    "inputs/kineto/test_fuzz.py",
)
"""Tests of the whole product: the rooms' own tests cover the same lines, and counting them doubles the time."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count no lines where another test counts them anyway."""
    folders = [Path(__file__).parent / place for place in WITHOUT_COVERAGE]
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start headless Chromium once per process; a second one would not start."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs chromium for the browser tests")
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()
