"""Run: what opening a path gives. Its questions, its tables of all ranks, what is known and wrong about them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from usp_prof.api.progress import notebook_progress
from usp_prof.api.questions import Questions
from usp_prof.inputs.discovery import Discovery, discover
from usp_prof.inputs.manifest import find_manifest, manifest_from, read_manifest
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.health import HealthRow, Severity, gathered, spans
from usp_prof.store.cache import CacheUnwritableError, StoredTables
from usp_prof.store.load import gather_late_health, load
from usp_prof.store.places import open_cache
from usp_prof.tables.assemble import assemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.contract import Manifest
    from usp_prof.inputs.discovery import Skipped
    from usp_prof.inputs.remote import Location
    from usp_prof.inputs.runs import FoundRun, TraceFile
    from usp_prof.store.cache import Cache
    from usp_prof.store.load import LoadedRank
    from usp_prof.tables.relations import Relations
    from usp_prof.tables.table_set import TableSet


_log = logging.getLogger("usp_prof")


class Derived:
    """What was made of a run's tables and is kept in the cache, under the tables' own keys."""

    def __init__(self, keys: Mapping[int, str], cache: Cache) -> None:
        self._keys, self._cache = keys, cache

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Give the folder of something, made by `write(folder)` when it is not there yet."""
        key = " ".join([form, *(f"{rank}:{key}" for rank, key in self._keys.items())])
        try:
            return self._cache.derive(key, write)
        except CacheUnwritableError:
            folder = Path(mkdtemp(prefix="usp-prof-"))
            finalize(self, rmtree, folder, ignore_errors=True)
            write(folder)
            return folder


class Run(Questions):
    """One run that was opened: its questions (`breakdown()`, `findings()`, `whatif(...)`, ...), its tables by SQL.

    `tables` is what analyses take.
    """

    path: Location
    """What was opened."""
    files: tuple[TraceFile, ...]
    """The trace files that were read, by rank."""
    others: tuple[str, ...]
    """Names of other runs in the same place; `open_run(path, run=name)` opens one."""
    skipped: tuple[Skipped, ...]
    """Files that are no traces, and why."""
    metadata: dict[int, Mapping[str, Any]]
    """What each rank's file says beside its events."""

    def __init__(
        self,
        found: FoundRun,
        discovery: Discovery,
        loaded: Mapping[int, LoadedRank],
        tables: TableSet,
        cache: Cache,
    ) -> None:
        self.name = found.name
        self.path = discovery.path
        self.files = tuple(file for file in found.files if file.rank in loaded)
        self.others = tuple(run.name for run in discovery.runs if run is not found)
        self.skipped = discovery.skipped
        self.tables = tables
        self.metadata = {rank: one.metadata for rank, one in sorted(loaded.items())}
        self._stored = _as_they_are(loaded)
        self._derived = Derived({rank: one.key for rank, one in sorted(loaded.items())}, cache)
        tables.kept = self._derived

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read, in order."""
        return self.tables.ranks

    @property
    def manifest(self) -> Manifest | None:
        """What the recorder said about the run."""
        return self.tables.manifest

    @property
    def health(self) -> tuple[HealthRow, ...]:
        """What was found wrong or missing, sorted."""
        return gathered(self.tables.health)

    @cached_property
    def _relations(self) -> Relations:
        from usp_prof.tables.relations import Relations  # noqa: PLC0415 - DuckDB takes long to load, and few ask in SQL

        return Relations(self.tables, self._stored)

    def table(self, name: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Give one table of all ranks as a DuckDB relation: `.df()` makes it pandas, `.arrow()` Arrow."""
        return self._relations.table(name)

    def sql(self, query: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Answer a SELECT over all tables: `.df()` makes it pandas, `.pl()` Polars, `.arrow()` Arrow."""
        return self._relations.query(query)

    query = sql  # its name before 0.2

    def answer(self, sql: str, *, rows: int | None = None, seconds: float = inf) -> pa.Table:
        """Answer a SELECT within bounds, as Arrow: its first rows, or a `UspProfError` when time is up."""
        return self._relations.answer(sql, rows=rows, seconds=seconds)

    def to_hta(self, ranks: Iterable[int] | None = None, *, synchronisation: bool = False) -> Any:  # noqa: ANN401 - HTA's
        """Give a HolisticTraceAnalysis `TraceAnalysis` over what was read, without reading again.

        `synchronisation` counts synchronisation events as device work, which HTA's critical path wants and its time
        breakdown does not.
        """
        from usp_prof.export.hta import to_hta  # noqa: PLC0415 - needs pandas and the optional extra `hta`

        return to_hta(self.tables, ranks, synchronisation=synchronisation)

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Give the folder of something made of this run's tables, calling `write(folder)` when it was not made before.

        `form` names what is made and the version of its form (`timeline-2`). It lies in the cache, within its
        bound, and goes with `usp-prof cache clear`; where no cache can be written it lives as long as this run.
        """
        return self._derived.derived(form, write)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, ranks={len(self.ranks)}, path={str(self.path)!r})"


def open_run(
    path: str | Location | Discovery,
    *,
    run: str | None = None,
    ranks: Iterable[int] | None = None,
    cache_dir: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
) -> Run:
    """Open the run under a path (a file, a folder, a glob, or their `Discovery`); the newest, or the one named `run`.

    `ranks` reads only these. Tables are kept in `cache_dir` (else `USP_PROF_CACHE`, else the user's cache folder).
    `progress` is called with bytes done, bytes in all and the file just begun or finished. `executor` reads the ranks
    (any `concurrent.futures.Executor`; its workers must see the files and the cache folder under the same paths);
    without one, processes of this machine do.

    A notebook shows how far reading has come. Ctrl-C, or an exception that `progress` raises, ends it and its
    workers at once; what was read until then is kept. `logging.getLogger("usp_prof")` is told what is read
    and what is lost.
    """
    discovery = path if isinstance(path, Discovery) else discover(path)
    found = _chosen(discovery, run)
    files = _wanted(found, ranks)
    manifest, manifest_health = _manifest(found)
    cache = open_cache(cache_dir)
    begun = time.monotonic()
    _log.info("reading %d ranks of %s", len(files), found.name)
    loaded, lost = load(files, manifest, cache, progress or notebook_progress(), executor)
    for row in lost:
        _log.info("%s: rank %d: %s", row.code, row.rank, row.detail)
    _log.info("read %d of %d ranks of %s in %.1f s", len(loaded), len(files), found.name, time.monotonic() - begun)
    if manifest is None:
        manifest, more = _manifest_inside(loaded)
        manifest_health += more
    health = [*discovery.health, *_other_runs(discovery, found), *_missing(found, loaded), *lost, *manifest_health]
    sources = {rank: one.source for rank, one in loaded.items()}
    health += [row for one in loaded.values() for row in one.health]
    tables = assemble(sources, manifest=manifest, health=health)
    gather_late_health(loaded.values(), tables.health)
    return Run(found, discovery, loaded, tables, cache)


@dataclass(frozen=True, slots=True)
class RanksRead:
    """A share of a run's ranks that was read into the store."""

    ranks: tuple[int, ...]
    wanted: int
    """How many ranks the share has."""
    health: tuple[HealthRow, ...]
    store: str
    """The folder or URL."""


def read_ranks(
    path: str | Location,
    *,
    run: str | None = None,
    ranks: Iterable[int] | None = None,
    shard: tuple[int, int] = (0, 1),
    cache_dir: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
) -> RanksRead:
    """Read every `shard[1]`-th rank of a run into the store, beginning with the `shard[0]`-th.

    Shares are disjoint and cover the run, whoever reads them and when. `open_run` finds their tables afterwards.
    """
    found = _chosen(discover(path), run)
    index, count = shard
    files = sorted(_wanted(found, ranks), key=lambda file: file.rank)[index::count]
    manifest, _ = _manifest(found)
    cache = open_cache(cache_dir)
    if not files:
        return RanksRead((), 0, (), cache.place)
    loaded, lost = load(files, manifest, cache, progress, executor)
    rows = [row for row in lost if row.severity is Severity.DATA_LOSS]
    rows += [row for one in loaded.values() for row in one.health if row.code == "not_cached"]
    unstored = {row.rank for row in rows if row.code == "not_cached"}
    stored = tuple(sorted(set(loaded) - unstored))
    return RanksRead(stored, len(files), tuple(rows), cache.place)


def _as_they_are(loaded: Mapping[int, LoadedRank]) -> dict[str, list[Path]]:
    """Name the tables that no other rank changes, when all of them lie in the cache."""
    stored = [one.source for _, one in sorted(loaded.items()) if isinstance(one.source, StoredTables)]
    if len(stored) < len(loaded) or not all(source.is_local for source in stored):
        return {}
    return {name: [source.path(name) for source in stored] for name in ("events", "threads")}


def _chosen(discovery: Discovery, name: str | None) -> FoundRun:
    if name is None:
        return discovery.runs[0]
    named = {run.name: run for run in discovery.runs}
    if name not in named:
        raise unknown_name("run", name, named)
    return named[name]


def _wanted(found: FoundRun, ranks: Iterable[int] | None) -> list[TraceFile]:
    if ranks is None:
        return list(found.files)
    wanted = set(ranks)
    missing = sorted(wanted - {file.rank for file in found.files})
    if missing or not wanted:
        there = spans([file.rank for file in found.files])
        raise UsageError(f"run {found.name} has no rank {spans(missing) or '(none was named)'}", hint=f"it has {there}")
    return [file for file in found.files if file.rank in wanted]


def _manifest(found: FoundRun) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    path = find_manifest(found.folders)
    return read_manifest(path) if path is not None else (None, ())


def _manifest_inside(loaded: Mapping[int, LoadedRank]) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    """Take the manifest that the recorder wrote into the traces themselves, when `run.json` was not copied along."""
    for one in loaded.values():
        said = one.metadata.get("usp_prof")
        if said:
            return manifest_from(said, "trace metadata")
    return None, ()


def _other_runs(discovery: Discovery, found: FoundRun) -> list[HealthRow]:
    others = [run.name for run in discovery.runs if run is not found]
    if not others:
        return []
    listed = ", ".join(others[:8]) + (" ..." if len(others) > 8 else "")
    detail = f"several runs lie here; opened {found.name}, not {listed}"
    return [HealthRow("other_runs", Severity.INFO, count=len(others), detail=detail)]


def _missing(found: FoundRun, loaded: Mapping[int, LoadedRank]) -> list[HealthRow]:
    world = max((file.world_size for file in found.files), default=-1)
    missing = sorted(set(range(world)) - {file.rank for file in found.files})
    if not missing or not loaded:
        return []
    detail = f"{len(missing)} of {world} ranks have no trace here ({spans(missing)}): what they did is not known"
    return [HealthRow("missing_ranks", Severity.ERROR, count=len(missing), detail=detail)]
