"""A user's own rule comes in by an entry point of an installed distribution."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest
from made import run, step, work

from usp_prof.cli.app import main
from usp_prof.findings import all_rules, find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULE = '''\
"""Compute could be faster.

What it finds
    All compute.
"""
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit

CODE, TITLE = "house-compute", "Compute could be faster"


def look(tables):
    yield Draft(TITLE, {"rank": tables.ranks[0]}, {}, Edit("compute_faster", "2"), "compute faster")
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with one rule, as pip would leave it."""
    (tmp_path / "house_rule_of_tests.py").write_text(RULE)
    info = tmp_path / "house_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[usp_prof.rules]\nhouse = house_rule_of_tests\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("house_rule_of_tests", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_rule_is_asked_ranked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert all_rules()[-1].CODE == "house-compute"
    tables = run({0: {"steps": [step(0, 0, 100_000)], "activities": [work("compute", 0, 100_000)]}})
    (found,) = [each for each in find(tables) if each.code == "house-compute"]
    assert found.gain_fraction == pytest.approx(0.5)
    assert found.edit == "compute_faster=2"
    assert main(["explain", "house-compute"]) == 0
    assert "All compute." in capsys.readouterr().out


def test_without_it_there_are_ours_alone() -> None:
    assert "house-compute" not in {each.CODE for each in all_rules()}
