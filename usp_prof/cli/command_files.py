"""Search for commands: names, summaries, and the import of one.

A file in `usp_prof/cli/commands` or in `usp_prof/extras/*/commands` is the command of the same name. The first line of
the file is the summary. Names and summaries are read without importing the files, so `usp-prof --help` stays fast.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = ("cli/commands", "extras/*/commands")


class Command(Protocol):
    """The interface of a command's module."""

    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code."""
        ...


@lru_cache(maxsize=1)
def command_files() -> dict[str, Path]:
    """Return the file of each command, sorted by the command's name."""
    files = [file for folder in _FOLDERS for file in _PACKAGE.glob(f"{folder}/[!_]*.py")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def summary_of(name: str) -> str:
    """Return the one-line summary of a command."""
    with command_files()[name].open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def load(name: str) -> Command:
    """Import a command."""
    path = command_files()[name].relative_to(_PACKAGE.parent).with_suffix("")
    command: Command = import_module(".".join(path.parts))
    return command
