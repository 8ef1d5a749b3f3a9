"""Load a run's ranks from the cache; an executor's workers read and store the others.

A rank with an unusable file is named in the run's health and does not affect the other ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from usp_prof.columns.arrow import Parted
from usp_prof.columns.table import View
from usp_prof.contract import Manifest
from usp_prof.inputs.object_stores import ExpiredError
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import readable
from usp_prof.store.cache import Cache, CacheUnwritableError, StoredTables
from usp_prof.store.entry import BrokenSealError
from usp_prof.store.executors import free_memory, local_executor, unpacked_bytes, workers_for
from usp_prof.store.rank_jobs import RankJob, build, build_job, digest_of_manifest, key_of_rank, made_by, stamp_of
from usp_prof.store.running import run_jobs
from usp_prof.tables.table_set import MemorySource, Source

Progress = Callable[[int, int, str], None]

_LITTLE = 64 << 20
"""JSON bytes that are read sooner than a worker starts: 0.5 CPU s for its imports, 16 ms for each MB."""
_OPENED_AT_ONCE = 16
"""Files and entries opened concurrently: each answer of an object store takes time."""
_SEEN_WITHIN_S = 65
_LOOKED_EVERY_S = 1
_AT_HAND = 1 << 28
"""Bytes of tables that stay in memory after they were built here; tables of further ranks are read back on demand."""


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """Tables of one rank, and the other data of its file."""

    source: Source
    metadata: Mapping[str, Any]
    health: tuple[HealthRow, ...]
    json_bytes: int
    key: str


class MendingSource:
    """The tables of an entry that is fetched table by table; if one is damaged, the rank's trace is read again."""

    def __init__(self, stored: StoredTables, read_again: Callable[[str], tuple[Source, list[HealthRow]]]) -> None:
        self._source: Source = stored
        self._read_again = read_again
        self.health: list[HealthRow] = []
        """Receives health rows that are found during access."""

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        self.view(name)
        return self._source.table(name)

    def view(self, name: str) -> View:
        """Return a table whose columns are read on demand."""
        try:
            return self._source.view(name)
        except BrokenSealError as error:
            self._source, rows = self._read_again(str(error))
            self.health += rows
            return self._source.view(name)

    def release(self) -> None:
        """Drop what can be read again."""
        self._source.release()

    def __reduce__(self) -> tuple[Callable[[Source], Source], tuple[Source]]:
        """Pickle the tables only: a worker that finds a damaged one fails, and this process repairs it."""
        return _unchanged, (self._source,)


def _unchanged(source: Source) -> Source:
    return source


def load(
    files: Sequence[TraceFile],
    manifest: Manifest | None,
    cache: Cache,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> tuple[dict[int, LoadedRank], list[HealthRow]]:
    """Load the ranks of a run; return them by rank, and a health row for each that failed.

    Without an executor, this process and local workers read a run that is large enough to start them.
    """
    loading = _Loading(files, manifest, cache, progress)
    unread = jobs = loading.from_cache(files)
    if executor is not None:
        jobs = loading.by_executor(jobs, executor)
    elif sum(unpacked_bytes(job.path) for job in jobs) > _LITTLE and (extra_workers := workers_for(jobs) - 1):
        with local_executor(extra_workers) as workers:
            jobs = loading.by_executor(jobs, workers, loading.read_here)
    for job in jobs:
        loading.read_here(job)
    if unread:
        with suppress(OSError):  # a folder that cannot be tidied can still be read
            cache.tidy()
    if not loading.loaded:
        why = "; ".join(dict.fromkeys(row.detail for row in loading.lost))
        raise InputError(why, hint="usp-prof info shows what was found under a path")
    return dict(sorted(loading.loaded.items())), loading.lost


class _Loading:
    """State while the ranks of one run are loaded."""

    def __init__(
        self, files: Sequence[TraceFile], manifest: Manifest | None, cache: Cache, progress: Progress | None
    ) -> None:
        self.loaded: dict[int, LoadedRank] = {}
        self.lost: list[HealthRow] = []
        self._manifest, self._cache, self._progress = manifest, cache, progress
        self._total, self._done = sum(_size(file.path) for file in files), 0
        self._room = _AT_HAND
        self._files = {file.rank: file for file in files}
        self._common: dict[str, Any] = {}
        """By name, the files' data besides events, as read first."""

    def from_cache(self, files: Sequence[TraceFile]) -> list[RankJob]:
        """Load the cached ranks; return jobs for the others."""
        jobs = []
        manifest_digest = digest_of_manifest(self._manifest)
        stamps = [stamp_of(file.path) for file in files]
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:
            keys = list(threads.map(lambda file: key_of_rank(file, manifest_digest), files))
            entries = threads.map(self._opened, keys)
            for file, key, stamp, stored in zip(files, keys, stamps, entries, strict=True):
                job = RankJob(file.path, file.rank, key, file.format, stamp, made_by())
                if stored is not None:
                    self._keep(job, stored)
                else:
                    jobs.append(job)
        for file, key in zip(files, keys, strict=True):
            if key in self._cache.damaged:
                self.lost.append(_damaged(file.rank, self._cache.damaged[key]))
        return jobs

    def by_executor(
        self, jobs: Sequence[RankJob], executor: Executor, read_here: Callable[[RankJob], None] | None = None
    ) -> list[RankJob]:
        """Let workers read, and this process too if `read_here` is given; return the jobs that are not done."""
        left, unseen = [], []
        for job, result in run_jobs(jobs, self._manifest, self._cache, executor, read_here):
            if result.error:
                self._lose(job, result.error)
            elif not result.stored:
                left.append(job)
            elif not self._take(job):
                unseen.append(job)
        return left + self._seen_later(unseen)

    def _seen_later(self, jobs: list[RankJob]) -> list[RankJob]:
        """Wait for entries that another machine stored and this one does not see yet; return those still missing.

        An NFS client may report for up to a minute that an entry is absent if it looked for it before.
        """
        until = time.monotonic() + _SEEN_WITHIN_S
        while jobs and time.monotonic() < until:
            time.sleep(_LOOKED_EVERY_S)
            jobs = [job for job in jobs if not self._take(job)]
        return jobs

    def read_here(self, job: RankJob) -> None:
        """Read one file in this process."""
        self._show_progress(job)
        try:
            tables, note = build_job(job, self._manifest)
        except ExpiredError:
            raise
        except UspProfError as error:
            self._lose(job, error.message)
            return
        source, rows = self._stored(job, tables, note)
        self._share(note["metadata"])
        self.loaded[job.rank] = _loaded(job, source, note, *rows)
        self._finish(job)

    def _stored(
        self, job: RankJob, tables: Mapping[str, pa.Table | Parted], note: Mapping[str, Any]
    ) -> tuple[Source, list[HealthRow]]:
        """Store the tables of a rank that was read here; if that fails, they stay in memory."""
        try:
            stored = self._cache.store(job.key, tables, note)
            self._hold(stored, tables)
        except (CacheUnwritableError, BrokenSealError) as error:
            free = free_memory()
            if free is not None and free < note["json_bytes"]:
                raise InputError(
                    f"{error}, and the ranks do not fit in memory", hint="use --store with a folder that has space"
                ) from None
            detail = f"{error}; the trace is read again each time"
            return MemorySource(tables), [HealthRow("not_cached", Severity.INFO, rank=job.rank, detail=detail)]
        return self._mending(job, stored), []

    def _mending(self, job: RankJob, stored: StoredTables) -> Source:
        return stored if stored.is_local else MendingSource(stored, partial(self._anew, job))

    def _anew(self, job: RankJob, why: str) -> tuple[Source, list[HealthRow]]:
        """Read a rank again whose stored tables are damaged, and replace them in the store."""
        tables, note = build(job.path, job.rank, self._manifest, job.format)
        if key_of_rank(self._files[job.rank], digest_of_manifest(self._manifest)) != job.key:
            raise InputError(f"{job.path} was changed since the run was opened", hint="open the run again")
        source, rows = self._stored(job, tables, note)
        return source, [_damaged(job.rank, why), *rows]

    def _hold(self, stored: StoredTables, tables: Mapping[str, pa.Table | Parted]) -> None:
        unsplit_tables = {name: table for name, table in tables.items() if isinstance(table, pa.Table)}
        size = sum(table.nbytes for table in unsplit_tables.values())
        if size <= self._room:
            self._room -= size
            for name, table in unsplit_tables.items():
                stored.view(name).hold(table)

    def _opened(self, key: str) -> StoredTables | None:
        stored = self._cache.open(key)
        if stored is not None:
            self._share(stored.note["metadata"])
        return stored

    def _share(self, metadata: dict[str, Any]) -> None:
        """Keep equal data of several files once: a manifest in each file names all ranks, as do lists of groups."""
        for name, value in metadata.items():
            common = self._common.setdefault(name, value)
            if common == value and type(common) is type(value):
                metadata[name] = common

    def _take(self, job: RankJob) -> bool:
        if stored := self._opened(job.key):
            self._keep(job, stored)
        return stored is not None

    def _keep(self, job: RankJob, stored: StoredTables) -> None:
        self.loaded[job.rank] = _loaded(job, self._mending(job, stored), stored.note)
        self._finish(job)

    def _lose(self, job: RankJob, why: str) -> None:
        row = HealthRow("rank_unreadable", Severity.DATA_LOSS, rank=job.rank, detail=why, file=readable(job.path.name))
        self.lost.append(row)
        self._finish(job)

    def _finish(self, job: RankJob) -> None:
        self._done += _size(job.path)
        self._show_progress(job)

    def _show_progress(self, job: RankJob) -> None:
        """Report the progress and the current file."""
        if self._progress is not None:
            self._progress(self._done, self._total, job.path.name)


def gather_late_health(ranks: Iterable[LoadedRank], health: list[HealthRow]) -> None:
    """Add health rows that ranks found after loading, and collect later ones here."""
    for rank in ranks:
        if isinstance(rank.source, MendingSource):
            health += rank.source.health
            rank.source.health = health


def _damaged(rank: int, why: str) -> HealthRow:
    detail = f"stored tables were damaged ({why}); the trace was read again"
    return HealthRow("cache_damaged", Severity.INFO, rank=rank, detail=detail)


def _loaded(job: RankJob, source: Source, note: Mapping[str, Any], *more: HealthRow) -> LoadedRank:
    rows = tuple(HealthRow(**{**row, "severity": Severity(row["severity"])}) for row in note["health"])
    return LoadedRank(source, note["metadata"], (*rows, *more), note["json_bytes"], job.key)


def _size(path: Location) -> int:
    return path.stat().st_size if path.exists() else 0
