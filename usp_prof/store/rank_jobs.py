"""Rank jobs: read one file, build its tables, store them; and the executors that run such jobs.

Any `concurrent.futures.Executor` will do. Without one, loky starts worker processes on this machine. Unlike the
standard pool it never imports the caller's main module, so a script or a notebook needs no main guard.
"""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.inputs.kineto.reader import read
from usp_prof.inputs.manifest import manifest_from
from usp_prof.inputs.memory import no_collection
from usp_prof.model.errors import UspProfError
from usp_prof.model.health import Severity
from usp_prof.store.cache import Cache, CacheUnwritableError
from usp_prof.tables.assemble import build_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.columns.arrow import Parted
    from usp_prof.contract import Manifest


@dataclass(frozen=True, slots=True)
class RankJob:
    """One file to read, as which rank, and the key under which its tables are stored."""

    path: Path
    rank: int
    key: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: its tables are stored, the file cannot be used (`error`), or the store cannot be written."""

    stored: bool
    error: str = ""


def build(path: Path, rank: int, manifest: Manifest | None) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read one file into tables, with the note that is stored beside them."""
    with no_collection():
        raw = read(path)
        if manifest is None and TRACE_METADATA_KEY in raw.metadata:
            manifest, _ = manifest_from(raw.metadata[TRACE_METADATA_KEY], path.name)
        health = tuple(replace(row, rank=rank, file=path.name) for row in raw.health)
        raw = replace(raw, health=health, file=path.name)
        tables = build_rank(raw, rank, manifest)
    note = {
        "metadata": dict(raw.metadata),
        "health": [*map(asdict, health), *_worse_than_info(tables["health"], {row.code for row in health})],
        "json_bytes": raw.json_bytes,
    }
    return tables, note


def _worse_than_info(table: pa.Table, known: Collection[str]) -> list[dict[str, Any]]:
    """Give what was found wrong while the tables were built; what only limits a figure stays in the table."""
    rows = table.to_pylist()
    return [row for row in rows if row["severity"] != Severity.INFO and row["code"] not in known]


def run_job(job: RankJob, manifest: Manifest | None, cache_folder: str, limit_bytes: int) -> JobResult:
    """Read one file and store its tables. All arguments and the result can be pickled: this is what workers run."""
    try:
        tables, note = build(job.path, job.rank, manifest)
        Cache(Path(cache_folder), limit_bytes).store(job.key, tables, note)
    except CacheUnwritableError:
        return JobResult(stored=False)
    except UspProfError as error:
        return JobResult(stored=False, error=error.message)
    return JobResult(stored=True)


NOT_DONE = JobResult(stored=False)
"""The worker died or could not start: whoever asked reads the file itself."""


@contextmanager
def local_executor(jobs: int) -> Iterator[Executor]:
    """Give a pool of worker processes, one a processor, and end them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    pool = ProcessPoolExecutor(max_workers=max(1, min(jobs, processors())))
    try:
        yield pool
    finally:
        # Without a failure nothing is running any more; after Ctrl-C nobody waits for what is.
        pool.shutdown(wait=True, kill_workers=True)


def run_jobs(
    jobs: Sequence[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> Iterator[tuple[RankJob, JobResult]]:
    """Run the jobs, the largest files first; gives each as it ends."""
    folder, limit = str(cache.folder), cache.limit_bytes
    futures = {}
    left = sorted(jobs, key=_largest_first)
    try:
        while left:
            futures[executor.submit(run_job, left[0], manifest, folder, limit)] = left[0]
            left.pop(0)
    except (OSError, BrokenProcessPool):  # no process can be started, or the first ones died at once
        pass
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except (BrokenProcessPool, CancelledError, OSError):
            yield futures[future], NOT_DONE
    for job in left:
        yield job, NOT_DONE


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _largest_first(job: RankJob) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)
