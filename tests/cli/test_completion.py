"""Shell completion: commands, options of a command, and values of an option."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import argcomplete
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def offered(line: str, folder: Path) -> set[str]:
    """Request completions as a shell does: the line is in the environment, the answer in a file."""
    answer = folder / "answer"
    env = os.environ | {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
    }  # fmt: skip
    command = [sys.executable, "-c", "import sys; from usp_prof.cli.app import main; sys.exit(main())"]
    subprocess.run(command, env=env, cwd=folder, check=True, capture_output=True)
    return {word.strip() for word in answer.read_text().split("\n")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("usp-prof an", {"analyze"}),
        ("usp-prof analyze --sec", {"--section"}),
        ("usp-prof analyze --format ht", {"html"}),
        ("usp-prof whatif --id", {"--ideal"}),
        ("usp-prof learn ov", {"overlap"}),
        ("usp-prof whatif run --edit rank_as", {"rank_as_peers="}),
        ("usp-prof whatif run --edit no_inp", {"no_input_wait"}),
        ("usp-prof explain slow-h", {"slow-host"}),
    ],
)
def test_completion_offers_what_can_follow(line: str, expected: set[str], tmp_path: Path) -> None:
    assert offered(line, tmp_path) == expected


def test_completion_offers_paths(tmp_path: Path) -> None:
    (tmp_path / "my-run").mkdir()
    assert offered("usp-prof analyze my", tmp_path) == {"my-run/"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_registration_script(shell: str) -> None:
    assert "usp-prof" in argcomplete.shellcode(["usp-prof"], shell=shell)
