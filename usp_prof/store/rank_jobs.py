"""Rank jobs: the key under which a rank's tables are stored, the job that reads and stores them, and who runs the jobs.

Any `concurrent.futures.Executor` will do. Without one, loky starts worker processes on this machine, as many as cores
and memory allow; unlike the standard pool it never imports the caller's main module, so a script or a notebook needs no
main guard. On a cluster, Dask's client gives an executor whose workers lie on other machines; they must see the traces
and the store under the same paths.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import BrokenExecutor, CancelledError, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from usp_prof._version import __version__, fingerprint
from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.inputs.kineto.reader import read
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
    from collections.abc import Collection, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.columns.arrow import Parted
    from usp_prof.contract import Manifest
    from usp_prof.inputs.remote import Location
    from usp_prof.inputs.runs import TraceFile
    from usp_prof.store.cache import Cache


# Keys. A rank's tables follow from the trace's content, the rank, the manifest, this package's version, and the lines
# of code that read and build: a key is made of all of them.

_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""


def key_of_rank(file: TraceFile, manifest_text: str) -> str:
    """Make the key of a rank's tables; the manifest as text, since it names every rank and is the same for all."""
    made_by = (__version__, fingerprint(*ROOMS))
    return content_key(file.path, file.path.name, file.rank, manifest_text, *made_by)


def text_of_manifest(manifest: Manifest | None) -> str:
    """Write a manifest as the text that goes into keys."""
    return msgspec.json.encode(manifest.to_dict() if manifest else None, order="sorted").decode()


def content_key(path: Location, *parts: object) -> str:
    """Make the key of a file: all its bytes, and what else decides what is made of them.

    XXH3 of 128 bits, at the speed of reading: no two files meet by chance, and nobody gains by making two that do.
    Of a file on an object store its URL, size and ETag stand for the bytes, which would have to be fetched.
    """
    content = xxhash.xxh3_128()
    if isinstance(path, RemotePath):
        path = path.listed()
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


# Executors that run the jobs.

_WORKER_BYTES = 200 << 20
"""Memory of a worker that reads nothing yet: the interpreter and its libraries."""
_UNPACKED = 12
"""A packed trace unpacks to about this many times its size; a reader needs about the unpacked size."""
_MEMORY_SHARE = 0.8
_DASK = "dask:"


@contextmanager
def local_executor(jobs: Sequence[RankJob], most: int = 0) -> Iterator[Executor]:
    """Give a pool of worker processes (at most `most`, if given), and end them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    pool = ProcessPoolExecutor(max_workers=workers_for(jobs, most))
    try:
        yield pool
    finally:
        # Without a failure nothing is running any more; after Ctrl-C nobody waits for what is.
        pool.shutdown(wait=True, kill_workers=True)


@contextmanager
def named_executor(name: str) -> Iterator[Executor]:
    """Give the executor that a command line names: `dask:tcp://HOST:PORT`, the address of a Dask scheduler."""
    if not name.startswith(_DASK):
        raise UsageError(f"no executor is named {name!r}", hint="--executor dask:tcp://HOST:8786")
    try:
        from distributed import Client  # noqa: PLC0415 - the extra `cluster`
    except ImportError:
        raise UsageError("Dask is not installed", hint="pip install 'usp-prof[cluster]'") from None
    address = name.removeprefix(_DASK)
    try:
        client = Client(address, timeout="30s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}", hint="dask scheduler") from None
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]


def workers_for(jobs: Sequence[RankJob], most: int = 0) -> int:
    """Say how many local workers can read at once: bounded by jobs, processors and memory."""
    bounds = [len(jobs), processors(), *([most] if most > 0 else [])]
    need = _WORKER_BYTES + max((_reading_bytes(job.path) for job in jobs), default=0)
    if (free := free_memory()) is not None:
        bounds.append(int(free * _MEMORY_SHARE / need))
    return max(1, min(bounds))


def _reading_bytes(path: Location) -> int:
    size = path.stat().st_size if path.exists() else 0
    return size if path.suffix == ".json" else size * _UNPACKED


def free_memory() -> int | None:
    """Say how many bytes of memory are free for this process, by the system and its container; None: not known."""
    bounds = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        bounds.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdecimal():
            bounds.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, KeyError, ValueError):
        pass
    return max(0, min(bounds)) if bounds else None


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
