"""Generated reference pages: they match the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from declared import declared_metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def test_the_references_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "make_docs", "--check"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_between_pages_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_id_that_the_definitions_name_is_a_metric() -> None:
    text = (DOCS / "definitions.md").read_text(encoding="utf-8")
    ids = set(re.findall(r"`([a-z]+(?:_[a-z]+)*_(?:time|fraction|residual|rate))`", text))
    declared = set(declared_metrics())
    assert {"compute_time", "exposed_comm_time", "idle_time", "overlap_fraction"} <= ids
    assert ids <= declared, ids - declared
