"""Runs among trace files: one file a rank, of one job; repeated ranks mean several runs, never a mixture.

Jobs are told apart first (`jobs`). Runs of one job are told apart by the folders they are in, else by profiler step,
else by time: the files are cut at their largest gaps until no rank stands twice in a part. What cannot be told apart is
refused with a list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from usp_prof.inputs.found import FoundRun
from usp_prof.inputs.jobs import read_whole, split_jobs
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.inputs.found import TraceFile

_Key = TypeVar("_Key", int, str)
_BILLION = 1_000_000_000


_MADE_NAME = re.compile(r"world \d+|step \d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|.* \(\d+\)")


def is_made_name(text: str) -> bool:
    """Say whether a run can be called so without being in a folder of that name."""
    return _MADE_NAME.fullmatch(text) is not None


def split_runs(files: list[TraceFile], root: Path) -> tuple[FoundRun, ...]:
    """Divide files into runs, the newest first; each has a name of its own."""
    base = root if root.is_dir() else Path(commonpath([file.path.parent for file in files]))
    parts = _by_folder(files, base) if _repeated(files) else {}
    runs: list[FoundRun] = []
    for folder, part in (parts or {"": files}).items():
        jobs = split_jobs(part)
        for job in jobs:
            name = folder if len(jobs) == 1 else _name_of_job(job, jobs, base)
            name = name if name.startswith(folder) else f"{folder}/{name}"
            runs += _runs_of_job(job, base, name)
    named = [run if run.name else replace(run, name=_title(root)) for run in runs]
    return _newest_first(_told_apart(named))


def _runs_of_job(files: list[TraceFile], base: Path, name: str) -> list[FoundRun]:
    """Divide the files of one job where ranks repeat."""
    if not _repeated(files):
        return [_run(name, files)]
    if parts := _by_folder(files, base):
        return [_run(folder, part) for folder, part in parts.items()]
    runs = _by_step_or_time([read_whole(file) for file in files])
    return [replace(run, name=f"{name}/{run.name}") for run in runs] if name else runs


def _by_folder(files: list[TraceFile], base: Path) -> dict[str, list[TraceFile]]:
    """Group files by the topmost folders in which no rank stands twice; empty where there are none."""
    for depth in range(1, _depth(files, base)):
        parts = _grouped(files, [_folder_at(file, base, depth) for file in files])
        if not any(_repeated(part) for part in parts.values()):
            return parts
    return {}


def _name_of_job(job: list[TraceFile], jobs: list[list[TraceFile]], base: Path) -> str:
    """Name a job by a folder that no other job has files in, else by its world size, else by when it began."""
    for depth in range(1, _depth(job, base)):
        own = {_folder_at(file, base, depth) for file in job}
        others = {_folder_at(file, base, depth) for other in jobs if other is not job for file in other}
        if len(own) == 1 and not own & others and "" not in own:
            return own.pop()
    sizes = [max(file.world_size for file in other) for other in jobs]
    size = max(file.world_size for file in job)
    if size > 0 and sizes.count(size) == 1:
        return f"world {size}"
    begun = min((file.start_ns for file in job if file.start_ns >= 0), default=-1)
    return _moment(begun) if begun >= 0 else job[0].path.name


def _told_apart(runs: list[FoundRun]) -> list[FoundRun]:
    """Give runs whose names are alike a number."""
    count: dict[str, int] = defaultdict(int)
    named = []
    for run in sorted(runs, key=lambda run: run.start_ns):
        count[run.name] += 1
        named.append(run if count[run.name] == 1 else replace(run, name=f"{run.name} ({count[run.name]})"))
    return named


def _by_step_or_time(files: list[TraceFile]) -> list[FoundRun]:
    steps = _grouped(files, [file.step for file in files])
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


def _grouped(files: list[TraceFile], keys: Iterable[_Key]) -> dict[_Key, list[TraceFile]]:
    parts: dict[_Key, list[TraceFile]] = defaultdict(list)
    for file, key in zip(files, keys, strict=True):
        parts[key].append(file)
    return parts


def _folder_at(file: TraceFile, base: Path, depth: int) -> str:
    return "/".join(file.path.relative_to(base).parts[:-1][:depth])


def _depth(files: list[TraceFile], base: Path) -> int:
    return max(len(file.path.relative_to(base).parts) for file in files)


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
