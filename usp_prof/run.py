"""Opened run: its questions, the tables of all ranks, and their health.

In a notebook, `open_run` shows a progress bar if reading takes longer than a moment.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import cached_property
from html import escape
from importlib import import_module
from math import inf
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import pyarrow as pa

from usp_prof.api.questions import Questions
from usp_prof.contract import Manifest
from usp_prof.inputs.discovery import Discovery, Skipped, discover
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location, RemotePath
from usp_prof.inputs.runs import FoundRun
from usp_prof.model.errors import UsageError
from usp_prof.model.health import HealthRow, gathered
from usp_prof.model.printable import readable
from usp_prof.store.cache import Cache, CacheUnwritableError, StoredTables
from usp_prof.store.load import LoadedRank, gather_late_health
from usp_prof.store.places import open_cache
from usp_prof.store.reading import read_run
from usp_prof.store.workers import Workers
from usp_prof.tables.catalog import assemble
from usp_prof.tables.sql_cells import Cells
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    from usp_prof.tables.relations import Relations

_log = logging.getLogger("usp_prof")


class Derived:
    """Data derived from a run's tables, such as timeline levels, cached under the keys of the tables."""

    def __init__(self, keys: Mapping[int, str], cache: Cache) -> None:
        self._keys = keys
        """The key of each rank's tables."""
        self._cache = cache

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of derived data; call `write(folder)` if it does not exist."""
        ranks = (f"{rank}:{key}" for rank, key in self._keys.items())
        try:
            return self._cache.derive(" ".join([form, *ranks]), write)
        except CacheUnwritableError:  # use a temporary folder that is deleted with this object
            folder = Path(mkdtemp(prefix="usp-prof-"))
            finalize(self, rmtree, folder, ignore_errors=True)
            write(folder)
            return folder


class Run(Questions):
    """An opened run: questions (`breakdown()`, `findings()`, `whatif(...)`, ...) and SQL over its tables."""

    path: Location
    """The opened path."""
    files: tuple[TraceFile, ...]
    """The trace files that were read, by rank."""
    others: tuple[str, ...]
    """Names of other runs in the same place; `open_run(path, run=name)` opens one."""
    skipped: tuple[Skipped, ...]
    """Files that are not traces, and why."""
    metadata: dict[int, Mapping[str, Any]]
    """Fields of each rank's file other than its events."""
    health_of_files: tuple[HealthRow, ...]
    """Problems found while reading the files; `health` also has those found when combining the ranks."""

    def __init__(
        self,
        chosen: FoundRun,
        discovery: Discovery,
        loaded: Mapping[int, LoadedRank],
        assembled: Callable[[], TableSet],
        health: tuple[HealthRow, ...],
        cache: Cache,
    ) -> None:
        self.name = readable(chosen.name)
        self.path = discovery.path
        self.files = tuple(file for file in chosen.files if file.rank in loaded)
        self.others = tuple(readable(run.name) for run in discovery.runs if run is not chosen)
        self.skipped = discovery.skipped
        by_rank = dict(sorted(loaded.items()))
        self.metadata = {rank: of_rank.metadata for rank, of_rank in by_rank.items()}
        self.health_of_files = health
        self._assembled = assembled
        self._stored = _stored_files(by_rank)
        self._derived = Derived({rank: of_rank.key for rank, of_rank in by_rank.items()}, cache)

    @cached_property
    def tables(self) -> TableSet:  # type: ignore[override] # a property where others have an attribute
        """The tables of all ranks, combined on first use; a cached report does not need them."""
        tables = self._assembled()
        tables.kept = self._derived
        return tables

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read, in order."""
        return tuple(self.metadata)

    @property
    def manifest(self) -> Manifest | None:
        """The recorder's description of the run (`run.json`)."""
        return self.tables.manifest

    @property
    def health(self) -> tuple[HealthRow, ...]:
        """Problems and gaps in the data, sorted."""
        return gathered(self.tables.health)

    @cached_property
    def _relations(self) -> Relations:
        from usp_prof.tables.relations import Relations  # noqa: PLC0415 - DuckDB takes long to load, and few ask in SQL

        return Relations(self.tables, self._stored)

    def table(self, name: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Return one table of all ranks as a DuckDB relation, with `.df()`, `.pl()` and `.to_arrow_table()`."""
        return self._relations.table(name)

    def sql(self, query: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Run a SELECT over all tables and return a DuckDB relation; "SHOW TABLES" lists the tables.

        Convert it with `.df()` (pandas), `.pl()` (Polars), `.to_arrow_table()` (Arrow) or `.fetchall()` (tuples).
        Queries cannot write, and cannot read files.
        """
        return self._relations.query(query)

    query = sql  # its name before 0.2

    def answer(
        self, sql: str, *, rows: int | None = None, seconds: float = inf, cells: Cells = Cells.TYPED
    ) -> pa.Table:
        """Run a SELECT with limits on rows and time and return an Arrow table; raise `UspProfError` on timeout.

        With `cells="plain"`, values other than numbers, booleans, strings, and lists or structs of these become text.
        With `cells="text"`, lists and structs become text too.
        """
        return self._relations.answer(sql, rows=rows, seconds=seconds, cells=cells)

    def to_hta(self, ranks: Iterable[int] | None = None, *, synchronisation: bool = False) -> Any:  # noqa: ANN401 - HTA's
        """Return HolisticTraceAnalysis' `TraceAnalysis` over the events of this run, without reading the files again.

        With `synchronisation`, synchronization events count as device work. HTA's critical path needs this; its time
        breakdown needs it off.
        """
        from usp_prof.export.hta import to_hta  # noqa: PLC0415 - needs pandas and the optional extra `hta`

        return to_hta(self.tables, ranks, synchronisation=synchronisation)

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of data derived from this run's tables, calling `write(folder)` if it does not exist.

        `form` is the name and version of the data, such as `timeline-2`. The folder is in the cache and counts towards
        its limit; `usp-prof cache clear` removes it. Without a writable cache it exists as long as this run.
        """
        return self._derived.derived(form, write)

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        return self.summary._repr_html_()

    def __repr__(self) -> str:
        return f"Run({self.name!r}, ranks={len(self.ranks)}, path={str(self.path)!r})"


_WORTH_PROCESSES = 2 << 30
"""Bytes of unpacked traces from which on it pays to start processes that measure, which takes them a second."""


def open_run(
    path: str | Location | Discovery,
    *,
    run: str | None = None,
    ranks: int | Iterable[int] | str | None = None,
    cache_dir: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
) -> Run:
    """Open the newest run in a path, or the one named `run`; the path is a file, folder, glob or `Discovery`.

    `ranks` reads only some ranks: numbers, "outliers", "one-per-stage" or "sample:16" (see docs/scale.md). `health`
    lists the ranks left out.

    Tables are cached in `cache_dir` (default: `USP_PROF_CACHE`, or the user's cache folder). `progress` is called with
    the bytes done, the total bytes, and the file that was started or finished. `executor` is any
    `concurrent.futures.Executor` that reads the ranks, and analyzes them if there are more than 64. Its workers must
    see the files and the cache under the same paths. Without it, local processes do this work.

    A notebook shows a progress bar. Ctrl-C, or an exception raised by `progress`, stops reading and its workers; ranks
    read so far stay cached. `logging.getLogger("usp_prof")` logs what is read and what is lost.
    """
    discovery = path if isinstance(path, Discovery) else _discovered(path, run)
    cache = open_cache(cache_dir)
    read = read_run(discovery, run, ranks, cache, progress or notebook_progress(), executor)

    def assembled() -> TableSet:
        sources = {rank: of_rank.source for rank, of_rank in read.loaded.items()}
        tables = assemble(sources, manifest=read.manifest, health=read.health)
        gather_late_health(read.loaded.values(), tables.health)
        if (
            executor is not None
            or sum(loaded_rank.json_bytes for loaded_rank in read.loaded.values()) > _WORTH_PROCESSES
        ):
            tables.workers = Workers(executor)
        return tables

    return Run(read.chosen, discovery, read.loaded, assembled, read.health, cache)


def opened(run: Run | str | Path) -> Run:
    """Return an opened run; a path is opened."""
    return run if isinstance(run, Run) else open_run(run)


def _discovered(path: str | Location, run: str | None) -> Discovery:
    """Find the runs under a path; log which one is read if there are several and none was named."""
    if isinstance(path, (list, tuple, set)):
        raise UsageError(
            "open_run takes one path", hint="a run is a folder of traces: [open_run(path) for path in paths]"
        )
    if not isinstance(path, (str, Path, RemotePath)):
        raise UsageError(f"a run is opened from a path, not {path!r}", hint='open_run("traces/my-run")')
    discovery = discover(path)
    if run is None and len(discovery.runs) > 1:
        newest, count = readable(discovery.runs[0].name), len(discovery.runs)
        _log.warning("%s holds %d runs: reading the newest, %s; run=NAME reads another", path, count, newest)
    return discovery


def _stored_files(by_rank: Mapping[int, LoadedRank]) -> dict[str, list[Path]]:
    """Return the cached files of tables that SQL can read directly, because other ranks do not change their rows.

    Empty if a rank is not cached, or not on this machine.
    """
    stored = [of_rank.source for of_rank in by_rank.values() if isinstance(of_rank.source, StoredTables)]
    if len(stored) < len(by_rank) or not all(source.is_local for source in stored):
        return {}
    return {name: [source.path(name) for source in stored] for name in ("events", "threads")}


_MOMENT_S = 1.0
_REDRAW_S = 0.1


def notebook_progress() -> Callable[[int, int, str], None] | None:
    """Return the progress callback of `open_run` for notebooks; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = import_module("IPython.display")

    started = shown = time.monotonic()
    handle: Any = None

    def show(done: int, total: int, name: str) -> None:
        nonlocal shown, handle
        now = time.monotonic()
        if now - started < _MOMENT_S or (now - shown < _REDRAW_S and done < total):
            return
        shown = now
        text = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        html = display.HTML(
            f'<progress value="{done}" max="{max(total, 1)}"></progress> reading {escape(name)}, {text}'
        )
        if done >= total:
            html = display.HTML(f"<small>read {total / 1e6:,.0f} MB in {now - started:.1f} s</small>")
        if handle is None:
            handle = display.display(html, display_id=True)
        else:
            handle.update(html)

    return show
