"""Jobs among the files of a folder: files of one job agree in world size, device and time.

Ranks that do not repeat are no proof of one job: a folder may hold ranks 0-3 of one and ranks 4-7 of another.
  1. Files whose recorded world size differs are of different jobs.
  2. So are files whose times lie apart: neither do their spans overlap, nor do they follow within `_FOLLOWS_NS`.
  3. So are files whose devices differ, unless world size and time both prove one job on several kinds of device.
A file that does not say its world size joins a job by device and time where only one fits, else it stands by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof.inputs.peek import last_ns, peek

if TYPE_CHECKING:
    from usp_prof.inputs.found import TraceFile

_FOLLOWS_NS = 10 * 60 * 1_000_000_000
_WALL_CLOCK_NS = 1_000_000_000_000_000_000
"""Times from here on (2001) count since 1970; smaller ones count from each host's own zero and compare with nothing."""


def split_jobs(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Divide files into jobs; one list where nothing tells them apart."""
    files = _with_wall_clocks(files)
    by_world: dict[int, list[TraceFile]] = defaultdict(list)
    for file in files:
        by_world[file.world_size].append(file)
    silent = by_world.pop(-1, [])
    jobs = [job for same_world in by_world.values() for job in _split_by_time_and_device(same_world)]
    unplaced = []
    for file in silent:
        fitting = [job for job in jobs if len(_split_by_time_and_device([*job, file])) == 1]
        if len(fitting) == 1:
            fitting[0].append(file)
        else:
            unplaced.append(file)
    return [*jobs, *_split_by_time_and_device(unplaced)]


def read_whole(file: TraceFile) -> TraceFile:
    """Give a file with the time, step and host that only stand behind its events."""
    seen = peek(file.path, whole=True)
    return replace(file, start_ns=seen.start_ns, step=seen.step, host=seen.host or file.host)


def _with_wall_clocks(files: list[TraceFile]) -> list[TraceFile]:
    """Read the ends of files where their times may be far apart: older traces have baseTimeNanoseconds there."""
    known = [file.start_ns for file in files if file.start_ns >= 0]
    if not known or max(known) - min(known) <= _FOLLOWS_NS:
        return files
    return [read_whole(file) if 0 <= file.start_ns < _WALL_CLOCK_NS else file for file in files]


def _split_by_time_and_device(files: list[TraceFile]) -> list[list[TraceFile]]:
    return [job for period in _periods(files) for job in _split_by_device(period)]


def _split_by_device(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Divide files by the device that they name; those that name none stay with the first."""
    proven = all(file.world_size > 0 and file.start_ns >= _WALL_CLOCK_NS for file in files)
    devices = sorted({file.device for file in files if file.device})
    if proven or len(devices) < 2:
        return [files] if files else []
    return [[file for file in files if (file.device or devices[0]) == device] for device in devices]


def _periods(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Cut files where a long time lies between the end of all earlier ones and the next begin.

    A file's end is read only where the next one begins late. Without a wall clock a file stays with the first period.
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
    return all(file.start_ns - last_ns(other.path) > _FOLLOWS_NS for other in earlier)
