"""The served runs: their names, their keys in links, and their files.

They are fixed when the dashboard starts. Pages and routes name a run by its key, which holds its name and a hash of its
contents, and never by a path. Inside the process a run is known by its place in `runs()`.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from usp_prof import UspProfError
from usp_prof.inputs.discovery import discover
from usp_prof.inputs.remote import Location
from usp_prof.store.rank_jobs import stamp_of

PATHS_VARIABLE = "USP_PROF_DASHBOARD_PATHS"


@lru_cache(maxsize=1)
def paths() -> tuple[str, ...]:
    """Return the paths that were named at the start."""
    return tuple(json.loads(os.environ.get(PATHS_VARIABLE, "[]")))


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A served run: its path, its name among several runs in that path, its display name, its trace files."""

    path: str
    run: str | None
    name: str
    files: tuple[Location, ...]
    stamps: tuple[tuple[int, int], ...]
    """Size and modification time of each local file when it was listed; (-1, -1): no local file."""

    @property
    def size_bytes(self) -> int:
        """The size of the trace files."""
        return sum(size for size, _ in self.stamps)


def runs() -> tuple[ServedRun, ...]:
    """Return the runs under the named paths; several under one path come newest first."""
    return _runs(paths())


@lru_cache(maxsize=4)
def _runs(paths: tuple[str, ...]) -> tuple[ServedRun, ...]:
    served: list[ServedRun] = []
    for path in paths:
        folder = Path(path).name or path
        try:
            discovery = discover(path)
        except UspProfError:  # reported when the run is opened
            served.append(ServedRun(path, None, folder, (), ()))
            continue
        is_name_of_run = discovery.runs[0].name == Path(path).name and not discovery.path.exists()
        listed_runs = discovery.runs[:1] if is_name_of_run else discovery.runs
        for run in listed_runs:
            files = tuple(file.path for file in run.files)
            run_name, shown_name = (run.name, f"{folder}: {run.name}") if len(listed_runs) > 1 else (None, folder)
            served.append(ServedRun(path, run_name, shown_name, files, _stamps(files)))
    return tuple(served)


def _stamps(files: tuple[Location, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(stamp_of(file) or (-1, -1) for file in files)


def run_count() -> int:
    """Return the number of served runs."""
    return len(runs())


def name(index: int) -> str:
    """Return the display name of a run: its folder, and its own name if the folder has several runs."""
    return runs()[index].name


def key(index: int) -> str:
    """Return the key that names a run in links: its name and a hash of its contents, such as `step-9~1f0c93ab`."""
    return f"{name(index)}~{_content_hash(runs()[index])}"


def source(index: int) -> str:
    """Return the query string that names a run to the routes."""
    return urlencode({"run": key(index)})


def index_of(text: str) -> int | None:
    """Return the place of the run with this key, or with this name if only one run has it; None if there is none."""
    by_key = [index for index in range(run_count()) if key(index) == text]
    by_name = [index for index in range(run_count()) if name(index) == text]
    matches = by_key or by_name
    return matches[0] if len(matches) == 1 or by_key else None


SAMPLE_BYTES = 4096
"""Bytes at each end of a trace file that the hash covers; a gzip file ends with the checksum of its contents."""


@lru_cache(maxsize=1024)
def _content_hash(run: ServedRun) -> str:
    """Hash name, size and both ends of every trace file, so that a copy of a run keeps its links."""
    content = hashlib.blake2b(digest_size=4)
    for file, (size, _) in sorted(
        zip(run.files, run.stamps, strict=True), key=lambda file_and_stamp: str(file_and_stamp[0])
    ):
        content.update(f"{file.name} {size}\n".encode("utf-8", "surrogateescape"))
        if size < 0 or not isinstance(file, Path):
            continue
        with suppress(OSError), file.open("rb") as stream:
            content.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(size - SAMPLE_BYTES, 0))
            content.update(stream.read())
    return content.hexdigest()


def change_on_disk(index: int) -> str:
    """Describe how the files of a run changed since they were listed: "changed", "deleted", or empty."""
    run = runs()[index]
    now = _stamps(run.files)
    if now == run.stamps:
        return ""
    return "deleted" if (-1, -1) in now else "changed"


def forget() -> None:
    """Forget all runs, so that the next request lists them again."""
    paths.cache_clear()
    _runs.cache_clear()
