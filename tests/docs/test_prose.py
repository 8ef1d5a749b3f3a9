"""Rules of `tools/prose`: each finds its bad example and accepts the good one; the repository has no findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROSE = Path(__file__).parents[2] / "tools" / "prose"
PAGE = [
    ("word", "The trace is read anew.", "The trace is read again."),
    ("word", "The run is held against its baseline.", "The run is compared with its baseline."),
    ("per", "It processes 30 tokens a step.", "It processes 30 tokens per step."),
    ("percent", "The gain is 4 % of the step.", "The gain is 4% of the step."),
    ("spelling", "The colour of a bar.", "The color of a bar."),
    ("sentence", " ".join(["word"] * 31) + ".", " ".join(["word"] * 30) + "."),
    ("sentence", "| " + " ".join(["cell"] * 31) + " |", "| " + " | ".join(["cell"] * 31) + " |"),
]
CODE = [
    ("docstring", 'def total():\n    """Give the total."""\n', 'def total():\n    """Return the total."""\n'),
    ("docstring", '"""Which rank is late?"""\n', '"""Late ranks."""\n'),
    ("percent", 'text = f"{share:.1f} %"\n', 'text = f"{share:.1f}%"\n'),
    ("word", "# whoever calls this\n", "# the caller\n"),
    ("name", "known = 1\n", "n_ranks = 1\n"),
    ("name", "def of(run):\n    pass\n", "def describe(run):\n    pass\n"),
    ("name", "def test_what_is_stored():\n    pass\n", "def test_tables_are_stored():\n    pass\n"),
    ("word", "def test_a_trace_is_read_anew():\n    pass\n", "def test_a_trace_is_read_again():\n    pass\n"),
]


def check(*words: str | Path) -> str:
    """Return what `tools/prose` prints."""
    return subprocess.run([sys.executable, PROSE, *words], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(("suffix", "examples"), [(".md", PAGE), (".py", CODE)])
def test_each_rule_finds_its_example(suffix: str, examples: list[tuple[str, str, str]], tmp_path: Path) -> None:
    for number, (_, bad, good) in enumerate(examples):
        (tmp_path / f"bad{number}{suffix}").write_text(bad)
        (tmp_path / f"good{number}{suffix}").write_text(good)
    output = check(tmp_path)
    assert "good" not in output
    for number, (rule, _, _) in enumerate(examples):
        assert f"bad{number}{suffix}:1: {rule}: " in output or f"bad{number}{suffix}:2: {rule}: " in output


def test_code_blocks_and_code_in_a_line_are_not_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Set `colour`.\n\n```python\nbehaviour = 1\n```\n")
    assert check(page) == ""


def test_output_blocks_are_checked_for_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```text\nidle 3.0 %\n```\n")
    assert f"{page}:2: percent: " in check(page)


def test_the_repository_has_no_findings() -> None:
    assert check() == ""
