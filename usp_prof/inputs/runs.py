"""Runs among trace files: one file per rank of one job; a rank with two files means several runs.

Jobs are separated first. Distinct ranks do not prove that there is one job: a folder may contain ranks 0-3 of one job
and ranks 4-7 of another.

  1. Files with different recorded world sizes belong to different jobs.
  2. Files apart in time do too: their spans do not overlap, and the gap between them exceeds `_FOLLOWS_NS`.
  3. Files with different devices do too, unless world size and time both prove one job on several kinds of device.

A file without a recorded world size joins a job by device and time if only one fits. Otherwise it is its own job. Runs
of one job are separated by folder, by profiler step, or by time. For time, the files are split at their largest gaps
until no part has a rank twice. Files that cannot be separated are rejected with a list.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeVar

from usp_prof.inputs.formats import by_name, peek
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location, parts_below
from usp_prof.model.errors import InputError


@dataclass(frozen=True, slots=True)
class FoundRun:
    """One run: one trace file per rank, in rank order."""

    name: str
    files: tuple[TraceFile, ...]
    start_ns: int = -1

    @property
    def folders(self) -> tuple[Location, ...]:
        """The folders of its files and their parents, nearest first, where a manifest may be."""
        nearest = sorted({file.path.parent for file in self.files}, key=lambda folder: (-len(folder.parts), folder))
        return tuple(dict.fromkeys([*nearest, *(folder.parent for folder in nearest)]))


_FOLLOWS_NS = 10 * 60 * 1_000_000_000
_WALL_CLOCK_NS = 1_000_000_000_000_000_000
"""Times from here on (2001) count from 1970. Smaller ones count from each host's own zero and are not comparable."""


def split_jobs(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Split files into jobs; return one list if they cannot be separated."""
    files = _with_wall_clocks(files)
    by_world: dict[int, list[TraceFile]] = defaultdict(list)
    for file in files:
        by_world[file.world_size].append(file)
    silent = by_world.pop(-1, [])
    jobs = [job for same_world in by_world.values() for job in _split_by_time_and_device(same_world)]
    unplaced = []
    for file in silent:
        matching_jobs = [job for job in jobs if len(_split_by_time_and_device([*job, file])) == 1]
        if len(matching_jobs) == 1:
            matching_jobs[0].append(file)
        else:
            unplaced.append(file)
    return [*jobs, *_split_by_time_and_device(unplaced)]


def read_whole(file: TraceFile) -> TraceFile:
    """Return a file with the time, step and host that are only recorded after its events."""
    seen = peek(file.path, to_end=True)
    return replace(file, start_ns=seen.start_ns, step=seen.step, host=seen.host or file.host)


def _with_wall_clocks(files: list[TraceFile]) -> list[TraceFile]:
    """Read the ends of files whose times may be far apart: older traces have baseTimeNanoseconds there."""
    start_times_ns = [file.start_ns for file in files if file.start_ns >= 0]
    if not start_times_ns or max(start_times_ns) - min(start_times_ns) <= _FOLLOWS_NS:
        return files
    return [read_whole(file) if 0 <= file.start_ns < _WALL_CLOCK_NS else file for file in files]


def _split_by_time_and_device(files: list[TraceFile]) -> list[list[TraceFile]]:
    return [job for period in _periods(files) for job in _split_by_device(period)]


def _split_by_device(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Split files by device name; files without one stay with the first device."""
    proven = all(file.world_size > 0 and file.start_ns >= _WALL_CLOCK_NS for file in files)
    devices = sorted({file.device for file in files if file.device})
    if proven or len(devices) < 2:
        return [files] if files else []
    return [[file for file in files if (file.device or devices[0]) == device] for device in devices]


def _periods(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Split files at long gaps between the end of all earlier files and the next start.

    A file's end is read only if the next one starts late. Files without a wall clock stay with the first period.
    """
    timeless = [file for file in files if file.start_ns < _WALL_CLOCK_NS]
    timed = sorted((file for file in files if file.start_ns >= _WALL_CLOCK_NS), key=lambda file: file.start_ns)
    periods: list[list[TraceFile]] = []
    for file in timed:
        if not periods or _lies_apart(periods[-1], file):
            periods.append([])
        periods[-1].append(file)
    if not periods:
        return [timeless] if timeless else []
    periods[0] += timeless
    return periods


def _lies_apart(earlier: list[TraceFile], file: TraceFile) -> bool:
    if file.start_ns - earlier[-1].start_ns <= _FOLLOWS_NS:
        return False
    return all(file.start_ns - by_name(other.format).last_ns(other.path) > _FOLLOWS_NS for other in earlier)


_Key = TypeVar("_Key", int, str)
_BILLION = 1_000_000_000


_MADE_NAME = re.compile(r"world \d+|step \d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|.* \(\d+\)")


def is_made_name(text: str) -> bool:
    """Return whether this may be a generated name of a run, instead of a folder's name."""
    return _MADE_NAME.fullmatch(text) is not None


def split_runs(files: list[TraceFile], root: Location) -> tuple[FoundRun, ...]:
    """Split files into runs, newest first, each with a unique name."""
    base = root if root.is_dir() else _common_folder([file.path.parent for file in files])
    parts = _by_folder(files, base) if _repeated(files) else {}
    runs: list[FoundRun] = []
    for folder, part in (parts or {"": files}).items():
        jobs = split_jobs(part)
        for job in jobs:
            name = folder if len(jobs) == 1 else _name_of_job(job, jobs, base)
            name = name if name.startswith(folder) else f"{folder}/{name}"
            runs += _runs_of_job(job, base, name)
    title = root.resolve().name or str(root)
    named_runs = [run if run.name else replace(run, name=title) for run in runs]
    return tuple(sorted(_told_apart(named_runs), key=lambda run: (-run.start_ns, run.name)))


def _common_folder(folders: list[Location]) -> Location:
    """Return the deepest folder that contains all of these."""
    common = folders[0]
    while any(folder != common and common not in folder.parents for folder in folders):
        common = common.parent
    return common


def _runs_of_job(files: list[TraceFile], base: Location, name: str) -> list[FoundRun]:
    """Split the files of one job if ranks repeat."""
    if not _repeated(files):
        return [_run(name, files)]
    if parts := _by_folder(files, base):
        return [_run(folder, part) for folder, part in parts.items()]
    runs = _by_step_or_time([read_whole(file) for file in files])
    return [replace(run, name=f"{name}/{run.name}") for run in runs] if name else runs


def _by_folder(files: list[TraceFile], base: Location) -> dict[str, list[TraceFile]]:
    """Group files by the topmost folders in which no rank repeats; empty if there are none."""
    for depth in range(1, _depth(files, base)):
        parts = _grouped(files, [_folder_at(file, base, depth) for file in files])
        if not any(_repeated(part) for part in parts.values()):
            return parts
    return {}


def _name_of_job(job: list[TraceFile], jobs: list[list[TraceFile]], base: Location) -> str:
    """Name a job by a folder in which no other job has files, or by its world size, or by its start time."""
    for depth in range(1, _depth(job, base)):
        own = {_folder_at(file, base, depth) for file in job}
        other_folders = {_folder_at(file, base, depth) for other in jobs if other is not job for file in other}
        if len(own) == 1 and not own & other_folders and "" not in own:
            return own.pop()
    sizes = [max(file.world_size for file in other) for other in jobs]
    size = max(file.world_size for file in job)
    if size > 0 and sizes.count(size) == 1:
        return f"world {size}"
    earliest_ns = min((file.start_ns for file in job if file.start_ns >= 0), default=-1)
    return _moment(earliest_ns) if earliest_ns >= 0 else job[0].path.name


def _told_apart(runs: list[FoundRun]) -> list[FoundRun]:
    """Add a number to each run whose name is already taken."""
    count: dict[str, int] = defaultdict(int)
    named_runs = []
    for run in sorted(runs, key=lambda run: run.start_ns):
        count[run.name] += 1
        named_runs.append(run if count[run.name] == 1 else replace(run, name=f"{run.name} ({count[run.name]})"))
    return named_runs


def _by_step_or_time(files: list[TraceFile]) -> list[FoundRun]:
    steps = _grouped(files, [file.step for file in files])
    if len(steps) > 1 and all(file.step >= 0 for file in files) and not any(map(_repeated, steps.values())):
        return [_run(f"step {part[0].step}", part) for part in steps.values()]
    parts = _cut_at_gaps(files)
    if parts is None:
        ranks = sorted(rank for rank, count in Counter(file.rank for file in files).items() if count > 1)
        paths = ", ".join(str(file.path) for file in files if file.rank in ranks[:2])
        raise InputError(
            f"several files claim rank {ranks[0]}, and their runs cannot be distinguished: {paths}",
            hint="put each run into its own folder, or open one of them",
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


def _folder_at(file: TraceFile, base: Location, depth: int) -> str:
    return "/".join(parts_below(file.path, base)[:-1][:depth])


def _depth(files: list[TraceFile], base: Location) -> int:
    return max(len(parts_below(file.path, base)) for file in files)


def _repeated(files: list[TraceFile]) -> bool:
    return len({file.rank for file in files}) < len(files)


def _run(name: str, files: list[TraceFile]) -> FoundRun:
    start_times_ns = [file.start_ns for file in files if file.start_ns >= 0]
    return FoundRun(name, tuple(sorted(files, key=lambda file: file.rank)), min(start_times_ns, default=-1))


def _moment(start_ns: int) -> str:
    return datetime.fromtimestamp(start_ns // _BILLION, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
