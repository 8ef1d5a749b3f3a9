"""README example: each of its lines is what the command prints today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.cli.app import main

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^```text\n\$ usp-prof (?P<command>\S+ \S+)[^\n]*\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_example_is_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert example is not None
    command, path = example["command"].split()
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, str(ROOT / path), "--cache-dir", str(tmp_path)]) == 0
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    shown = [line.strip() for line in example["lines"].splitlines() if line.strip()]
    assert len(shown) > 8
    assert [line for line in shown if line not in printed] == []
