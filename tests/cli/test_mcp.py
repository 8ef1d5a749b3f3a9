"""`usp-prof mcp` without its extra, or with missing folders: a message, a hint, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from usp_prof.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_the_extra_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from usp_prof.cli.app import main; sys.exit(main(['mcp', '.']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the package mcp is not installed\nhint: pip install 'usp-prof[agent]'\n"


def test_a_missing_folder_is_unusable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", str(tmp_path / "nothing")]) == 2
    assert "hint: " in capsys.readouterr().err
