"""Code blocks of the README, the tutorial and planning: run in order, in one folder that contains `traces/`.

Blocks marked `sh` and `python` are run; one after `<!-- not run: why -->` is skipped. A block marked `text` shows lines
that the block before it printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorial.md", "docs/planning.md", "docs/whatif.md")
BLOCK = re.compile(
    r"(?P<skip><!-- not run: .+? -->\s*)?^```(?P<kind>sh|python|text)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(match["kind"], match["code"]) for match in BLOCK.finditer(text) if not match["skip"]]


def test_the_tutorial_contains_code() -> None:
    kinds = [kind for kind, _ in blocks("docs/tutorial.md")]
    assert kinds.count("sh") >= 5
    assert kinds.count("python") >= 2
    assert kinds.count("text") >= 5


def test_the_readme_shows_output() -> None:
    assert [kind for kind, _ in blocks("README.md")] == ["sh", "text"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "USP_PROF_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    env["COLUMNS"] = "80"
    printed: set[str] = set()
    for kind, code in blocks(page):
        if kind == "text":
            shown = [line.strip() for line in code.splitlines() if line.strip()]
            assert shown
            assert [line for line in shown if line not in printed] == []
            continue
        words = ["sh", "-euc", code] if kind == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        assert done.stdout or "-o" in code or "synth" in code
        printed = {line.strip() for line in done.stdout.splitlines()}
