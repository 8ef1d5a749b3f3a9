"""Rank jobs: the key of a rank's tables, the job that reads and stores them, and running such jobs.

Any `concurrent.futures.Executor` works; `executors` has those of this machine and of a cluster.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from usp_prof._version import __version__, fingerprint
from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.inputs.formats import read_rank
from usp_prof.inputs.manifest import manifest_from
from usp_prof.inputs.memory import no_collection
from usp_prof.inputs.object_stores import ExpiredError
from usp_prof.inputs.remote import RemotePath
from usp_prof.model.errors import InputError, UsageError, UspProfError
from usp_prof.model.health import Severity
from usp_prof.model.printable import readable
from usp_prof.store.cache import UNBOUNDED, CacheUnwritableError
from usp_prof.store.places import cache_at
from usp_prof.tables.catalogue import ROOMS, build_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.columns.arrow import Parted
    from usp_prof.contract import Manifest
    from usp_prof.inputs.remote import Location
    from usp_prof.inputs.runs import TraceFile
    from usp_prof.store.cache import Cache


# Keys. The trace's content, the rank, the manifest, this package's version, and the code that reads and builds
# determine a rank's tables: all of them are part of the key.

_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""


def key_of_rank(file: TraceFile, manifest_digest: str) -> str:
    """Return the key of a rank's tables. For the manifest, which names every rank, one digest serves all ranks."""
    return content_key(file.path, file.path.name, file.rank, manifest_digest, *made_by())


def made_by() -> tuple[str, str]:
    """Return what determines the tables of a trace: this package's version and its code that reads and builds."""
    return __version__, fingerprint(*ROOMS)


def digest_of_manifest(manifest: Manifest | None) -> str:
    """Return a short text for keys that changes with the manifest."""
    text = msgspec.json.encode(manifest.to_dict() if manifest else None, order="sorted")
    return hashlib.blake2b(text, digest_size=20).hexdigest()


def content_key(path: Location, *parts: object) -> str:
    """Return the key of a file: a hash of its bytes and of all other inputs.

    XXH3 with 128 bits runs at reading speed. Accidental collisions do not occur in practice, and deliberate ones would
    gain nothing. For a file on an object store, URL, size and ETag replace the bytes, which would have to be fetched.
    """
    content = xxhash.xxh3_128()
    if isinstance(path, RemotePath):
        path = path.with_stat()
        if path.stamp:
            return _key(f"{path.url} {path.size} {path.stamp}".encode(), parts)
    block = memoryview(bytearray(_BLOCK))
    try:
        with path.open("rb", buffering=0) as stream:
            while size := stream.readinto(block):
                content.update(block[:size])
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint="check the path and its rights") from None
    return _key(content.digest(), parts)


def _key(content: bytes, parts: tuple[object, ...]) -> str:
    text = b"\0".join((content, *(str(part).encode("utf-8", "surrogateescape") for part in parts)))
    return hashlib.blake2b(text, digest_size=20).hexdigest()


# Jobs: one file read, its tables built and stored.


@dataclass(frozen=True, slots=True)
class RankJob:
    """One file to read, its rank, and the key under which its tables are stored."""

    path: Location
    rank: int
    key: str
    format: str = ""
    """Name of the format of the file; empty: detected when it is read."""
    stamp: tuple[int, int] | None = None
    """Size and time of the file before its key was computed; None: unknown, or an object with its own check."""
    made_by: tuple[str, str] | None = None
    """The code version that the key is for, see `made_by`; None: that of the reader."""


class OtherVersionError(UspProfError):
    """The workers have another version of this package than the caller, so their results cannot be used."""


def stamp_of(path: Location) -> tuple[int, int] | None:
    """Return size and modification time of a local file, to detect changes."""
    if isinstance(path, RemotePath):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def build_job(job: RankJob, manifest: Manifest | None) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read a job's file as `build` does; refuse a file that changed since its key was computed."""
    tables, note = build(job.path, job.rank, manifest, job.format)
    if job.stamp is not None and stamp_of(job.path) != job.stamp:
        raise InputError(f"{readable(job.path.name)} was changed while it was read", hint="open the run again")
    return tables, note


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job: its tables are stored, the file is unusable (`error`), or the store is not writable."""

    stored: bool
    error: str = ""


def build(
    path: Location, rank: int, manifest: Manifest | None, format_name: str = ""
) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read one file into tables; return them with the note that is stored with them."""
    with no_collection():
        record = read_rank(path, rank, format_name)
        metadata = dict(record.metadata)
        if manifest is not None:  # it names all ranks in each of their files, and the run's own manifest has priority
            metadata.pop(TRACE_METADATA_KEY, None)
        if manifest is None and TRACE_METADATA_KEY in record.metadata:
            manifest, _ = manifest_from(record.metadata[TRACE_METADATA_KEY], readable(path.name))
        health = tuple(replace(row, rank=rank, file=readable(path.name)) for row in record.health)
        record = replace(record, health=health, file=readable(path.name))
        tables = build_rank(record, rank, manifest_of_rank(manifest, rank))
    note = {
        "metadata": metadata,
        "health": [*map(asdict, health), *_worse_than_info(tables["health"], {row.code for row in health})],
        "json_bytes": record.json_bytes,
    }
    return tables, note


def manifest_of_rank(manifest: Manifest | None, rank: int) -> Manifest | None:
    """Return the part of the manifest that a rank's own tables need; its size does not grow with the number of ranks.

    If the manifest names hosts, the hosts give the known ranks; else the coordinates do.
    """
    if manifest is None:
        return None
    name = str(rank)
    hosts = {name: manifest.hosts[name]} if name in manifest.hosts else {}
    is_known_by_place = not manifest.hosts and name in manifest.coordinates
    coordinates = {name: manifest.coordinates[name]} if is_known_by_place else {}
    return replace(manifest, hosts=hosts, coordinates=coordinates, groups=[], stages={}, join_rate={}, notes=[])


def _worse_than_info(table: pa.Table, codes_of_file: Collection[str]) -> list[dict[str, Any]]:
    """Return the problems found while building tables; rows that only limit a figure stay in the table."""
    rows = table.to_pylist()
    return [row for row in rows if row["severity"] != Severity.INFO and row["code"] not in codes_of_file]


def run_job(job: RankJob, manifest: Manifest | None, cache_folder: str) -> JobResult:
    """Read one file and store its tables. Arguments and result can be pickled: workers run this function.

    The caller keeps the cache within its limit, because a worker does not know the run's other ranks. Raises
    `ExpiredError` or `OtherVersionError` if nothing more can be read; any other problem of the file is part of the
    result.
    """
    if job.made_by not in (None, made_by()):
        raise OtherVersionError(
            f"the workers have another usp-prof ({made_by()[0]}) than this machine ({job.made_by[0]})",
            hint="install the same version on all of them",
        )
    try:
        tables, note = build_job(job, manifest)
        cache_at(cache_folder, UNBOUNDED).store(job.key, tables, note)
    except CacheUnwritableError:
        return JobResult(stored=False)
    except ExpiredError:
        raise
    except UspProfError as error:
        return JobResult(stored=False, error=error.message)
    return JobResult(stored=True)


NOT_DONE = JobResult(stored=False)
"""The worker died or did not start: the caller reads the file itself."""


_ASKED_EVERY_S = 0.5
ATTEMPTS = 3
"""Attempts for a rank whose worker dies while the executor continues."""


def run_jobs(
    jobs: Sequence[RankJob],
    manifest: Manifest | None,
    cache: Cache,
    executor: Executor,
    read_here: Callable[[RankJob], None] | None = None,
) -> Iterator[tuple[RankJob, JobResult]]:
    """Run the jobs, the largest files first; yield each result as its job ends.

    With `read_here`, the caller reads as well: it takes the smallest files that no worker has begun, and there is no
    result for those. Such an executor ends with this call; another one drops the remaining jobs when the caller stops
    early. A job whose worker fails is repeated, up to `ATTEMPTS` attempts in all; then it is an error. Jobs left by a
    broken executor are not done.
    """
    left = sorted(jobs, key=_largest_first)
    for _ in range(ATTEMPTS):
        failed = []
        for job, result in _run_once(left, manifest, cache, executor, read_here):
            if isinstance(result, JobResult):
                yield job, result
            else:
                failed.append((job, result))
        left = [job for job, _ in failed]
    for job, error in failed:
        why = f"{ATTEMPTS} workers failed to read it, the last with {type(error).__name__}: {error}"
        yield job, JobResult(stored=False, error=why)


def _run_once(
    jobs: Sequence[RankJob],
    manifest: Manifest | None,
    cache: Cache,
    executor: Executor,
    read_here: Callable[[RankJob], None] | None,
) -> Iterator[tuple[RankJob, JobResult | Exception]]:
    """Run each job once; return the exceptions of jobs whose worker failed."""
    futures = _submitted(jobs, manifest, cache, executor)
    submitted = set(futures.values())
    not_submitted = [job for job in jobs if job not in submitted]
    try:
        if read_here is not None:
            _read_beside(futures, read_here)
        for future in _as_completed(futures):
            try:
                yield futures[future], _own_result(future.result())
            except (ExpiredError, OtherVersionError, UsageError):
                raise
            except (BrokenExecutor, CancelledError, OSError):
                yield futures[future], NOT_DONE
            # Any exception: a damaged rank must not stop the run. Executors have different errors for a killed worker
            # (Dask's KilledWorker) without a common class, and a file may reveal a bug here. No error is hidden:
            # after `ATTEMPTS` the rank is an error in `health`, with the error's name.
            except Exception as error:  # noqa: BLE001
                yield futures[future], error
    finally:
        for future in futures:  # a caller that stops needs no further results
            if read_here is None and not future.done():
                future.cancel()
    yield from ((job, NOT_DONE) for job in not_submitted)


def _submitted(
    jobs: Iterable[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> dict[Future[JobResult], RankJob]:
    """Submit the jobs, as many as the executor takes."""
    futures = {}
    try:
        for job in jobs:
            futures[executor.submit(run_job, job, manifest_of_rank(manifest, job.rank), cache.place)] = job
    except (OSError, BrokenExecutor):  # no process can be started, or the first ones died immediately
        pass
    except Exception as error:  # any error of a third-party executor, such as one that was shut down
        raise UsageError(
            f"the executor takes no jobs: {type(error).__name__}: {error}", hint="give one that is open"
        ) from error
    _refuse_without_answers(futures)
    return futures


def _read_beside(futures: dict[Future[JobResult], RankJob], read_here: Callable[[RankJob], None]) -> None:
    """Read the files that no worker has begun, the last first; their futures are dropped."""
    for future, job in reversed(list(futures.items())):
        if future.cancel():
            del futures[future]
            read_here(job)


def _refuse_without_answers(futures: Iterable[object]) -> None:
    """Refuse an executor that returns something other than futures, such as a reference to a remote result."""
    for future in futures:
        if not (hasattr(future, "done") and hasattr(future, "result")):
            raise UsageError(
                f"the executor's `submit` returns {type(future).__name__}, which has no `done` and `result`",
                hint="use an executor whose `submit` returns futures, like those of concurrent.futures",
            )


def _own_result(result: object) -> JobResult:
    """Refuse an executor whose futures return something other than the submitted function's result."""
    if isinstance(result, JobResult):
        return result
    raise UsageError(
        f"the executor's futures return {type(result).__name__} instead of the job's result",
        hint="use an executor whose futures return the result of the submitted function",
    )


def _as_completed(futures: Iterable[Future[JobResult]]) -> Iterator[Future[JobResult]]:
    """Yield futures as they end; futures that only resemble the standard ones are polled."""
    waiting = list(futures)
    if all(isinstance(future, Future) for future in waiting):
        yield from as_completed(waiting)
        return
    while waiting:
        ended = [future for future in waiting if future.done()]
        waiting = [future for future in waiting if future not in ended]
        yield from ended
        if waiting and not ended:
            time.sleep(_ASKED_EVERY_S)


def _largest_first(job: RankJob) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)
