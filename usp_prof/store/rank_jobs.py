"""Rank jobs: read one file, build its tables, store them; run by any `concurrent.futures.Executor`."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, CancelledError, as_completed
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.inputs.kineto.reader import read
from usp_prof.inputs.manifest import manifest_from
from usp_prof.inputs.memory import no_collection
from usp_prof.inputs.object_stores import ExpiredError
from usp_prof.model.errors import UspProfError
from usp_prof.model.health import Severity
from usp_prof.model.printable import readable
from usp_prof.store.cache import UNBOUNDED, CacheUnwritableError
from usp_prof.store.places import cache_at
from usp_prof.tables.catalogue import build_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.columns.arrow import Parted
    from usp_prof.contract import Manifest
    from usp_prof.inputs.remote import Location
    from usp_prof.store.cache import Cache


@dataclass(frozen=True, slots=True)
class RankJob:
    """One file to read, as which rank, and the key under which its tables are stored."""

    path: Location
    rank: int
    key: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: its tables are stored, the file cannot be used (`error`), or the store cannot be written."""

    stored: bool
    error: str = ""


def build(path: Location, rank: int, manifest: Manifest | None) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read one file into tables, with the note that is stored beside them."""
    with no_collection():
        raw = read(path)
        if manifest is None and TRACE_METADATA_KEY in raw.metadata:
            manifest, _ = manifest_from(raw.metadata[TRACE_METADATA_KEY], readable(path.name))
        health = tuple(replace(row, rank=rank, file=readable(path.name)) for row in raw.health)
        raw = replace(raw, health=health, file=readable(path.name))
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


def run_job(job: RankJob, manifest: Manifest | None, cache_folder: str) -> JobResult:
    """Read one file and store its tables. All arguments and the result can be pickled: this is what workers run.

    Whoever asked keeps the cache within its bound: a worker does not know the other ranks of the run.
    Raises `ExpiredError` where nothing more can be read; whatever else is wrong with the file is its result.
    """
    try:
        tables, note = build(job.path, job.rank, manifest)
        cache_at(cache_folder, UNBOUNDED).store(job.key, tables, note)
    except CacheUnwritableError:
        return JobResult(stored=False)
    except ExpiredError:
        raise
    except UspProfError as error:
        return JobResult(stored=False, error=error.message)
    return JobResult(stored=True)


NOT_DONE = JobResult(stored=False)
"""The worker died or could not start: whoever asked reads the file itself."""


ATTEMPTS = 3
"""How often a rank is asked for before it is given up, where its worker dies and the executor goes on."""


def run_jobs(
    jobs: Sequence[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> Iterator[tuple[RankJob, JobResult]]:
    """Run the jobs, the largest files first; gives each as it ends.

    A job whose worker fails is given again, `ATTEMPTS` times in all; then it is an error. What an executor that is
    broken has left is not done.
    """
    left = sorted(jobs, key=_largest_first)
    for _ in range(ATTEMPTS):
        failed = []
        for job, result in _run_once(left, manifest, cache, executor):
            if isinstance(result, JobResult):
                yield job, result
            else:
                failed.append((job, result))
        left = [job for job, _ in failed]
    for job, error in failed:
        why = f"{ATTEMPTS} workers failed to read it, the last with {type(error).__name__}: {error}"
        yield job, JobResult(stored=False, error=why)


def _run_once(
    jobs: Sequence[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> Iterator[tuple[RankJob, JobResult | Exception]]:
    """Run each job once; gives the exception of those whose worker failed."""
    futures = {}
    try:
        for job in jobs:
            futures[executor.submit(run_job, job, manifest, cache.place)] = job
    except (OSError, BrokenExecutor):  # no process can be started, or the first ones died at once
        pass
    try:
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except ExpiredError:
                raise
            except (BrokenExecutor, CancelledError, OSError):
                yield futures[future], NOT_DONE
            # Everything: a damaged rank must not cost the others their run. Executors have errors of their own for a
            # worker that was killed (Dask's KilledWorker) without a common class, and a file may bring out a fault of
            # ours. Nothing is swallowed: after `ATTEMPTS` the rank is an error in `health`, with the error's name.
            except Exception as error:  # noqa: BLE001
                yield futures[future], error
    finally:
        for future in futures:  # whoever stops asking wants nothing more read
            future.cancel()
    submitted = set(futures.values())
    yield from ((job, NOT_DONE) for job in jobs if job not in submitted)


def _largest_first(job: RankJob) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)
