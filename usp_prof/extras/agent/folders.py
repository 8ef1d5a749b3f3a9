"""Folders that a server was given: the only place from which it reads, whatever path an agent names.

A path is resolved first (links followed, `..` removed) and must then be in one of the folders. Other paths are rejected
before they are accessed, so the reply does not reveal whether a file exists elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from usp_prof.model.errors import InputError
from usp_prof.model.files import folders_below

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|file:", re.IGNORECASE)
_LONGEST = 200
"""Maximum characters of a path that an error message repeats."""
_TRACES = (".json", ".json.gz", ".json.zst", ".trace", ".trace.gz")


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """A folder with files named like traces."""

    path: Path
    files: int
    bytes: int


class Folders:
    """The folders from which a server reads."""

    def __init__(self, given: Sequence[str]) -> None:
        for text in given:
            if _URL.match(text) or not Path(text).is_dir():
                raise InputError(f"{text} is not a folder on this machine", hint="usp-prof mcp FOLDER, such as traces/")
        self.roots = tuple(Path(text).resolve() for text in given)

    def place(self, text: str) -> Path:
        """Return the real path of a file or folder below the folders; a relative one is looked up in each of them."""
        if _URL.match(text):
            raise self._refused(text, "is a URL")
        try:
            real = [(root / text).resolve() for root in self.roots]
            inside = [path for path in real if self._holds(path)]
            place = next((path for path in inside if path.exists()), None)
        except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a null byte
            raise self._refused(text, "is not a path") from None
        if not text or not inside:
            raise self._refused(text, "is outside")
        if place is None:
            raise InputError(f"{text} does not exist", hint="call open without a path to list the runs")
        for link in _links_below(place):
            if not self._holds(link.resolve()):
                raise self._refused(str(link), "is a link that leads outside")
        return place

    def trace_folders(self, most: int) -> list[TraceFolder]:
        """List folders with files named like traces, sorted by path; links to folders are not followed."""
        folders = []
        for root in self.roots:
            for folder, inner, names in os.walk(root):
                inner.sort()
                inner[:] = [name for name in inner if not name.startswith(".")]
                traces = [Path(folder, name) for name in names if name.endswith(_TRACES) and name != "run.json"]
                sizes = [path.stat().st_size for path in traces if path.is_file() and not path.is_symlink()]
                if sizes:
                    folders.append(TraceFolder(Path(folder), len(sizes), sum(sizes)))
                if len(folders) == most:
                    return folders
        return folders

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)

    def _refused(self, text: str, why: str) -> InputError:
        return InputError(
            f"{text[:_LONGEST]!r} {why}: this server only reads files under {', '.join(map(str, self.roots))}",
            hint="name a run as open lists it; to read other folders, start usp-prof mcp with them",
        )


def _links_below(top: Path) -> Iterator[Path]:
    """Yield every link below a folder before following it."""
    for folder, inner, names in folders_below(top):
        yield from (path for name in (*inner, *names) if (path := Path(folder, name)).is_symlink())
