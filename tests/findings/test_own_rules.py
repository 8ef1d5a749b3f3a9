"""A user's own rule, loaded from an entry point of an installed distribution."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING

import pytest
from made import run, step, work
from made_faults import run_of

from usp_prof.cli.app import main
from usp_prof.findings import all_rules, find
from usp_prof.findings.search import search

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
    yield Draft(TITLE, {"rank": tables.ranks[0]}, {}, Edit("compute_faster", "2"), "compute faster", least_gain=0.0)
'''


RULE_OF_ALL_MESSAGES = RULE.replace("house-compute", "house-all-messages").replace(
    'Edit("compute_faster", "2")', 'Edit("comm_dtype", "fp8")'
)
RULE_OF_ONE_AXIS = RULE.replace("house-compute", "house-dp-messages").replace(
    'Edit("compute_faster", "2")', 'Edit("comm_dtype", "fp8", (("axis", "dp"),))'
)


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, *rules: str) -> list[str]:
    """Install a distribution with rules, in the layout that pip creates; return the names of their modules."""
    modules = [f"house_rule_of_tests_{number}" for number in range(len(rules))]
    for module, text in zip(modules, rules, strict=True):
        (folder / f"{module}.py").write_text(text)
    info = folder / "house_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n")
    entries = "".join(f"{module} = {module}\n" for module in modules)
    (info / "entry_points.txt").write_text(f"[usp_prof.rules]\n{entries}")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return modules


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    modules = _install(tmp_path, monkeypatch, RULE)
    yield
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def contradicting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install two rules whose changes exclude each other: smaller messages overall, and on one axis."""
    modules = _install(tmp_path, monkeypatch, RULE_OF_ALL_MESSAGES, RULE_OF_ONE_AXIS)
    yield
    for module in modules:
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("installed")
def test_an_installed_rule_is_run_ranked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert all_rules()[-1].CODE == "house-compute"
    tables = run({0: {"steps": [step(0, 0, 100_000)], "activities": [work("compute", 0, 100_000)]}})
    (own_finding,) = [finding for finding in find(tables) if finding.code == "house-compute"]
    assert own_finding.gain_fraction == pytest.approx(0.5)
    assert own_finding.edit == "compute_faster=2"
    assert main(["explain", "house-compute"]) == 0
    assert "All compute." in capsys.readouterr().out


def test_without_an_installed_rule_there_are_only_our_own() -> None:
    assert "house-compute" not in {rule.CODE for rule in all_rules()}


@pytest.mark.usefixtures("contradicting")
def test_a_change_excluded_from_the_combined_gain_is_reported() -> None:
    report = search(run_of(json.dumps({"mesh": {"dp": 2}, "work": {"overlap_dp": False}})).tables)
    codes = [finding.code for finding in report.findings]
    assert codes.index("house-all-messages") < codes.index("house-dp-messages")
    (row,) = [note for note in report.skipped if note.code == "edits_apart"]
    assert row.detail.startswith("the combined gain excludes house-dp-messages")
    assert "comm_dtype=fp8 already sets it for all of these" in row.detail
