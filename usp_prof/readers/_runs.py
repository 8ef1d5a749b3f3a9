"""Which files belong together? One run has one file a rank; repeated ranks mean several runs, never a mixture.

Told apart by the folders they are in, else by profiler step, else by time: the files are cut at their largest gaps
until no rank stands twice in a part. What cannot be told apart is refused with a list.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.model.errors import InputError
from usp_prof.readers.found import FoundRun
from usp_prof.readers.peek import peek

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from usp_prof.readers.found import TraceFile

_BILLION = 1_000_000_000


def split_runs(files: list[TraceFile], root: Path) -> tuple[FoundRun, ...]:
    """Divide files into runs, the newest first."""
    if not _repeated(files):
        return (_run(_title(root), files),)
    base = root if root.is_dir() else Path(commonpath([file.path.parent for file in files]))
    for depth in range(1, max(len(file.path.relative_to(base).parts) for file in files)):
        parts = _grouped(files, _folder_at(base, depth))
        if not any(_repeated(part) for part in parts.values()):
            return _newest_first([_run(str(name) or _title(root), part) for name, part in parts.items()])
    return _newest_first(_by_step_or_time([_whole(file) for file in files]))


def _by_step_or_time(files: list[TraceFile]) -> list[FoundRun]:
    steps = _grouped(files, lambda file: file.step)
    if len(steps) > 1 and all(file.step >= 0 for file in files) and not any(map(_repeated, steps.values())):
        return [_run(f"step {part[0].step}", part) for part in steps.values()]
    parts = _cut_at_gaps(files)
    if parts is None:
        ranks = sorted({file.rank for file in files if _count(files, file.rank) > 1})
        listed = ", ".join(str(file.path) for file in files if file.rank in ranks[:2])
        raise InputError(
            f"several files claim rank {ranks[0]}, and nothing tells their runs apart: {listed}",
            hint="put each run into a folder of its own, or open one of them",
        )
    return [_run(_moment(min(file.start_ns for file in part)), part) for part in parts]


def _cut_at_gaps(files: list[TraceFile]) -> list[list[TraceFile]] | None:
    if any(file.start_ns < 0 for file in files):
        return None
    ordered = sorted(files, key=lambda file: (file.start_ns, file.rank))
    gaps = {later.start_ns - earlier.start_ns for earlier, later in pairwise(ordered)}
    for limit in sorted(gaps, reverse=True):
        parts = [[ordered[0]]]
        for earlier, later in pairwise(ordered):
            if later.start_ns - earlier.start_ns >= max(limit, 1):
                parts.append([])
            parts[-1].append(later)
        if not any(map(_repeated, parts)):
            return parts
    return None


def _whole(file: TraceFile) -> TraceFile:
    seen = peek(file.path, whole=True)
    return replace(file, start_ns=seen.start_ns, step=seen.step, host=seen.host or file.host)


def _grouped(files: list[TraceFile], key: Callable[[TraceFile], Hashable]) -> dict[Hashable, list[TraceFile]]:
    parts: dict[Hashable, list[TraceFile]] = defaultdict(list)
    for file in files:
        parts[key(file)].append(file)
    return parts


def _folder_at(base: Path, depth: int) -> Callable[[TraceFile], Hashable]:
    return lambda file: "/".join(file.path.relative_to(base).parts[:-1][:depth])


def _repeated(files: list[TraceFile]) -> bool:
    return len({file.rank for file in files}) < len(files)


def _count(files: list[TraceFile], rank: int) -> int:
    return sum(file.rank == rank for file in files)


def _run(name: str, files: list[TraceFile]) -> FoundRun:
    known = [file.start_ns for file in files if file.start_ns >= 0]
    return FoundRun(name, tuple(sorted(files, key=lambda file: file.rank)), min(known, default=-1))


def _newest_first(runs: list[FoundRun]) -> tuple[FoundRun, ...]:
    return tuple(sorted(runs, key=lambda run: (-run.start_ns, run.name)))


def _title(root: Path) -> str:
    return root.resolve().name or str(root)


def _moment(start_ns: int) -> str:
    return datetime.fromtimestamp(start_ns // _BILLION, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
