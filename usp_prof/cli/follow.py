"""Following a run that is still being recorded: its report is redrawn when ranks or profiler windows arrive.

The files under the path are polled. A file that has just changed waits until it is stable. A stable file that ends
early, or is not yet a trace, waits for `patience` seconds. After that it counts as damaged, and the report says so. The
job has ended when all ranks of the newest run are present and nothing has changed for that long.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from usp_prof.cli.opening import note, open_from
from usp_prof.contract import MANIFEST_NAME
from usp_prof.inputs.discovery import Discovery, Skipped, discover, list_files
from usp_prof.inputs.peek import FileKind
from usp_prof.inputs.remote import Location, RemotePath, location
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.printable import spans
from usp_prof.run import Run

if TYPE_CHECKING:
    Stamp = tuple[int, int | str]
    """Size and time of the last change of a file; the ETag for an object."""

PATIENCE_SECONDS = 30.0
_RESTS_SECONDS = 1.0
_LOOKS_SECONDS = 0.5
_OBJECT_STORE_LOOKS_SECONDS = 5.0
"""Each poll lists the folder, and object stores charge for that."""
_UNFINISHED_CODES = frozenset({"truncated", "corrupt_packing", "rank_unreadable"})
_UNFINISHED_KINDS = frozenset({FileKind.EMPTY, FileKind.JSON, FileKind.OTHER, FileKind.MANIFEST})
"""Kinds that the beginning of a trace may look like; our recorder writes a manifest into it before the events."""


class Arrivals:
    """The files under a path: the state of each at the last poll, and the time since which it is unchanged."""

    def __init__(self, root: Location, patience: float) -> None:
        self._root = root
        self._patience = patience
        self._stamps: dict[Location, Stamp] = {}
        self._since: dict[Location, float] = {}
        self._changed = 0.0
        """Time of the last change of any file; removed files count."""
        self._unfinished: dict[Location, Stamp] = {}
        """Files that were read and found unfinished, with their state at that time."""

    def look(self, now: float) -> None:
        """List the files again."""
        stamps = _stamps(self._root)
        if stamps != self._stamps:
            self._changed = now
        self._since = {
            path: self._since[path] if self._stamps.get(path) == stamp else now for path, stamp in stamps.items()
        }
        self._stamps = stamps

    def waiting(self, now: float) -> frozenset[Location]:
        """Return the files that must not be read yet."""
        return frozenset(path for path, since in self._since.items() if now - since < self._wait_of(path))

    def _wait_of(self, path: Location) -> float:
        is_unfinished = self._unfinished.get(path) == self._stamps[path]
        return self._patience if is_unfinished else min(_RESTS_SECONDS, self._patience)

    def ready(self, waiting: Collection[Location]) -> frozenset[tuple[Location, Stamp]]:
        """Return the files that can be read, with their current state."""
        return frozenset((path, stamp) for path, stamp in self._stamps.items() if path not in waiting)

    def set_aside(self, paths: Iterable[Location], now: float) -> bool:
        """Make unfinished files wait for `patience`; return False if all of them already have."""
        self._unfinished.update((path, self._stamps[path]) for path in paths if path in self._stamps)
        return bool(self.waiting(now) & set(paths))

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing has changed for `patience` seconds."""
        return now - self._changed >= self._patience


def follow(args: argparse.Namespace, draw: Callable[[Run], None]) -> int:
    """Draw the report whenever files have arrived; return when the job has ended."""
    root = location(args.path)
    looks_seconds = _OBJECT_STORE_LOOKS_SECONDS if isinstance(root, RemotePath) else _LOOKS_SECONDS
    arrivals = Arrivals(root, args.patience)
    tries = _Tries(args, draw)
    while True:
        now = time.monotonic()
        arrivals.look(now)
        waiting = arrivals.waiting(now)
        ready = arrivals.ready(waiting)
        if ready != tries.ready and not any(path.name == MANIFEST_NAME for path in waiting):
            unfinished = tries.open(waiting)
            if arrivals.set_aside(unfinished, now):
                continue
            tries.draw(ready, waiting)
        if tries.has_all_ranks and not waiting and arrivals.is_quiet(now):
            note(args, f"the job has ended: all ranks are there, and nothing changed for {args.patience:g} s")
            return 0
        time.sleep(looks_seconds)


class _Tries:
    """The last attempt to open the run and draw its report."""

    def __init__(self, args: argparse.Namespace, draw: Callable[[Run], None]) -> None:
        self._args = args
        self._draw = draw
        self._run: Run | None = None
        self._said = ""
        self.ready: frozenset[tuple[Location, Stamp]] | None = None
        """The files of the last report; None before the first attempt."""
        self.has_all_ranks = False

    def open(self, waiting: frozenset[Location]) -> set[Location]:
        """Open the run without the waiting files; return the files that look unfinished."""
        self._run, self.has_all_ranks = None, False
        try:
            discovery = discover(self._args.path, without=waiting)
            unfinished = {skipped.path for skipped in discovery.skipped if _may_be_unfinished(skipped)}
            self._run = open_from(argparse.Namespace(**{**vars(self._args), "path": discovery, "ranks": None}))
        except UspProfError as error:
            self._say(f"waiting: {error.message}")
            return set()
        files = {file.rank: file.path for run in discovery.runs if run.name == self._run.name for file in run.files}
        damaged = {row.rank for row in self._run.tables.health if row.code in _UNFINISHED_CODES}
        self.has_all_ranks = len(files) >= _world_size(self._run, discovery) > 0
        return unfinished | {files[rank] for rank in damaged & files.keys()}

    def draw(self, ready: frozenset[tuple[Location, Stamp]], waiting: Collection[Location]) -> None:
        """Draw the report of the opened run, if there is one."""
        self.ready = ready
        if self._run is None:
            return
        try:
            self._draw(self._run)
        except UspProfError as error:  # such as a requested rank that has not arrived yet
            self._say(f"waiting: {error.message}")
            return
        still = "1 file is" if len(waiting) == 1 else f"{len(waiting)} files are"
        rest = f", {still} still written" if waiting else ""
        self._say(f"ranks {spans(self._run.ranks)} of {self._run.name}{rest}; Ctrl-C ends")

    def _say(self, text: str) -> None:
        if text != self._said:
            note(self._args, text)
            self._said = text


def _may_be_unfinished(skipped: Skipped) -> bool:
    """Return whether a skipped file may be a trace once it is complete; a reason in words means damage."""
    is_damaged = skipped.reason not in set(FileKind)
    return is_damaged or (skipped.reason in _UNFINISHED_KINDS and skipped.path.name != MANIFEST_NAME)


def _world_size(run: Run, discovery: Discovery) -> int:
    """Return the number of ranks of the job, or -1 if neither the manifest nor a trace states it."""
    if run.manifest is not None and run.manifest.mesh:
        return math.prod(run.manifest.mesh.values())
    return max(
        (file.world_size for candidate in discovery.runs if candidate.name == run.name for file in candidate.files),
        default=-1,
    )


def _stamps(root: Location) -> dict[Location, Stamp]:
    """Return size and time of each file; empty if there are no files yet."""
    try:
        paths = list_files(root)
    except InputError:
        return {}
    stamps: dict[Location, Stamp] = {}
    for path in paths:
        if isinstance(path, RemotePath):
            stamps[path] = (path.size, path.stamp)
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:  # renamed since it was listed
            continue
        stamps[path] = (stat.st_size, stat.st_mtime_ns)
    return stamps
