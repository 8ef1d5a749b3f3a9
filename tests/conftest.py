"""Tiers of the tests (see `tiers.py`), and one browser per process.

Generated examples have no deadlines, because machines can be busy. They are the same in every run, except with
`--tier full`, which searches for new ones.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
import tiers
from hypothesis import HealthCheck, settings
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

settings.register_profile("new examples", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same examples", settings.get_profile("new examples"), derandomize=True)

WITHOUT_COVERAGE = (
    "analyses/test_any_tables.py",
    "corpus",
    "dashboard",
    "examples",
    "inputs/kineto/test_fuzz.py",
    "report/test_browser.py",
    "smoke",
    "tables/test_any_trace.py",
    "torture",
    "trainer",
    "whatif/test_gpu_truth.py",
    "whatif/test_injected_delays.py",
    "whatif/test_metamorphic.py",
    "whatif/test_recorded_pairs.py",
    "whatif/test_second_injection.py",
)
"""Tests of the whole product. The other tests cover the same lines, and counting lines adds 70% to the CPU time."""
COUNTED = frozenset(
    {
        "test_area.py",
        "test_counters.py",
        "test_morph.py",
        "test_neighbours.py",
        "test_rows.py",
        "test_timeline.py",
        "test_wall.py",
    }
)
"""Files of `dashboard` that test the timeline of the package, which nothing else covers."""
LONGEST_FIRST = ("trainer", "dashboard", "record", "smoke", "benchmarks", "docs", "learn")
"""Folders whose files take a minute or more: if one started last, one process would be idle."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=[*tiers.Tier], default=tiers.Tier.ALL, help="which tests to run: see tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    tiers.chosen = tiers.Tier(config.getoption("--tier"))
    settings.load_profile("new examples" if tiers.chosen is tiers.Tier.FULL else "same examples")
    # A shell starts its background jobs with SIGINT ignored, and programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same with SIGHUP and `nohup`; a handler is not inherited.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no module of a folder that the tier leaves out."""
    return None if tiers.has_folder(collection_path) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of the tier, longest files first, and measure coverage only in tests that need it."""
    is_chosen = {item: tiers.has_marks({mark.name for mark in item.iter_markers()}) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not is_chosen[item]])
    items[:] = sorted(filter(is_chosen.get, items), key=lambda item: item.path.parent.name not in LONGEST_FIRST)
    folders = [tiers.TESTS / place for place in WITHOUT_COVERAGE]
    for item in items:
        is_left_out = item.path.name not in COUNTED and any(item.path.is_relative_to(folder) for folder in folders)
        if item.get_closest_marker("real") or is_left_out:
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
