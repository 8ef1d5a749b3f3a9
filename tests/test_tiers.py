"""Tiers of the tests: `scripts/test` starts nothing heavy, and each tier contains the previous one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
import tiers
from tiers import MARKS_OF_ALL, ONLY_IN_ALL, TESTS, Tier

if TYPE_CHECKING:
    from pathlib import Path

SMOKE = TESTS / "smoke"
HEAVY = {"distributed", "lightning", "playwright", "streamlit", "torch", "transformers"}
"""Libraries that take seconds to import."""
FILES = [
    path
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.relative_to(TESTS).parts[0] not in ONLY_IN_ALL and SMOKE not in path.parents
]
"""Test files of the core."""


def test_each_excluded_folder_has_tests() -> None:
    assert [name for name in sorted(ONLY_IN_ALL) if not list((TESTS / name).glob("test_*.py"))] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_file_of_the_core_imports_nothing_heavy_and_marks_its_browser_tests(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    imported = {name.name for node in module.body if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in module.body if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} & HEAVY == set()
    assigned = [target for node in module.body if isinstance(node, ast.Assign) for target in node.targets]
    if "pytestmark" in map(ast.unparse, assigned):
        return
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and "browser" in {argument.arg for argument in node.args.args}:
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            assert decorators & {"pytest.mark.browser", "pytest.fixture"}, node.name


def test_each_tier_contains_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = [set(), {"full"}, *({mark} for mark in sorted(MARKS_OF_ALL))]
    folders = [*sorted(ONLY_IN_ALL), "columns", "smoke"]
    held = []
    for tier in Tier:
        monkeypatch.setattr(tiers, "chosen", tier)
        held.append({str(names) for names in marks if tiers.has_marks(names)} | set(filter(_is_in, folders)))
    assert held[0] < held[1] < held[2]
    assert {"columns", "smoke", str(set())} == held[0]


def _is_in(folder: str) -> bool:
    return tiers.has_folder(TESTS / folder)


def test_ci_runs_the_commands_of_the_readme_and_all_tests() -> None:
    root = TESTS.parent
    assert "\nscripts/test --all\n" in (root / ".ci" / "run").read_text(encoding="utf-8")
    assert "`scripts/test`" in (root / "README.md").read_text(encoding="utf-8")
