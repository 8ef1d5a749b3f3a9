"""Run: what opening a path gives. Its questions, its tables of all ranks, what is known and wrong about them.

In a notebook, opening shows one line with a bar once reading takes longer than a moment.
"""

from __future__ import annotations

import logging
import sys
import time
from functools import cached_property
from html import escape
from importlib import import_module
from math import inf
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from usp_prof.api.questions import Questions
from usp_prof.inputs.discovery import Discovery, discover
from usp_prof.model.errors import UsageError
from usp_prof.model.health import gathered
from usp_prof.model.printable import readable
from usp_prof.store.cache import CacheUnwritableError, StoredTables
from usp_prof.store.load import gather_late_health
from usp_prof.store.places import open_cache
from usp_prof.store.reading import read_run
from usp_prof.store.workers import Workers
from usp_prof.tables.catalogue import assemble
from usp_prof.tables.sql_cells import Cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    import pyarrow as pa

    from usp_prof.contract import Manifest
    from usp_prof.inputs.discovery import Skipped
    from usp_prof.inputs.remote import Location
    from usp_prof.inputs.runs import FoundRun, TraceFile
    from usp_prof.model.health import HealthRow
    from usp_prof.store.cache import Cache
    from usp_prof.store.load import LoadedRank
    from usp_prof.tables.relations import Relations
    from usp_prof.tables.table_set import TableSet

_log = logging.getLogger("usp_prof")


class Derived:
    """Things made of a run's tables (levels of a timeline, ...), kept in the cache under the tables' own keys."""

    def __init__(self, keys: Mapping[int, str], cache: Cache) -> None:
        self._keys = keys
        """The key of each rank's tables."""
        self._cache = cache

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of something, made by `write(folder)` when it is not there yet."""
        ranks = (f"{rank}:{key}" for rank, key in self._keys.items())
        try:
            return self._cache.derive(" ".join([form, *ranks]), write)
        except CacheUnwritableError:  # a folder that goes with this object
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
    health_of_files: tuple[HealthRow, ...]
    """What was found wrong or missing as the files were read; `health` has what joining the ranks found as well."""

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
        """The tables of all ranks, joined when they are first asked for: a report that is kept needs none."""
        tables = self._assembled()
        tables.kept = self._derived
        return tables

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read, in order."""
        return tuple(self.metadata)

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
        """Return one table of all ranks as a DuckDB relation, with `.df()`, `.pl()` and `.to_arrow_table()`."""
        return self._relations.table(name)

    def sql(self, query: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Answer a SELECT over all tables, as a DuckDB relation; `run.table("steps")` and "SHOW TABLES" look around.

        `.df()` makes it pandas, `.pl()` Polars (`pip install polars`), `.to_arrow_table()` Arrow, `.fetchall()` tuples.
        Nothing can be written, and no file is read.
        """
        return self._relations.query(query)

    query = sql  # its name before 0.2

    def answer(
        self, sql: str, *, rows: int | None = None, seconds: float = inf, cells: Cells = Cells.TYPED
    ) -> pa.Table:
        """Answer a SELECT within bounds, as Arrow: its first rows, or a `UspProfError` when time is up.

        With `cells` "plain" what is no number, truth value or text, nor a list or struct of these, comes as the text
        that DuckDB writes; with "text" lists and structs do so too.
        """
        return self._relations.answer(sql, rows=rows, seconds=seconds, cells=cells)

    def to_hta(self, ranks: Iterable[int] | None = None, *, synchronisation: bool = False) -> Any:  # noqa: ANN401 - HTA's
        """Return a HolisticTraceAnalysis `TraceAnalysis` over what was read, without reading again.

        `synchronisation` counts synchronisation events as device work, which HTA's critical path wants and its time
        breakdown does not.
        """
        from usp_prof.export.hta import to_hta  # noqa: PLC0415 - needs pandas and the optional extra `hta`

        return to_hta(self.tables, ranks, synchronisation=synchronisation)

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of data derived from this run's tables, calling `write(folder)` if it does not exist.

        `form` names what is made and the version of its form (`timeline-2`). It lies in the cache, within its
        bound, and goes with `usp-prof cache clear`; where no cache can be written it lives as long as this run.
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
    """Open the run under a path (a file, a folder, a glob, or their `Discovery`); the newest, or the one named `run`.

    `ranks` reads only these: their numbers, or a choice by what they are: "outliers", "one-per-stage" or "sample:16"
    (see docs/scale.md). `health` says what was left out.

    Tables are kept in `cache_dir` (else `USP_PROF_CACHE`, else the user's cache folder).
    `progress` is called with bytes done, bytes in all and the file just begun or finished. `executor` reads the ranks
    and, of more than 64, measures them (any `concurrent.futures.Executor`; its workers must see the files and the cache
    folder under the same paths). Without one, processes of this machine do; of small runs this one measures.

    A notebook shows how far reading has come. Ctrl-C, or an exception that `progress` raises, ends it and its
    workers at once; what was read until then is kept. `logging.getLogger("usp_prof")` is told what is read
    and what is lost.
    """
    discovery = path if isinstance(path, Discovery) else _discovered(path, run)
    cache = open_cache(cache_dir)
    read = read_run(discovery, run, ranks, cache, progress or notebook_progress(), executor)

    def assembled() -> TableSet:
        sources = {rank: of_rank.source for rank, of_rank in read.loaded.items()}
        tables = assemble(sources, manifest=read.manifest, health=read.health)
        gather_late_health(read.loaded.values(), tables.health)
        if executor is not None or sum(one.json_bytes for one in read.loaded.values()) > _WORTH_PROCESSES:
            tables.workers = Workers(executor)
        return tables

    return Run(read.found, discovery, read.loaded, assembled, read.health, cache)


def _discovered(path: str | Location, run: str | None) -> Discovery:
    """Find the runs under a path; log which one is read if there are several and none was named."""
    if isinstance(path, (list, tuple, set)):
        raise UsageError(
            "open_run opens one run", hint="a run is a folder of traces: [open_run(path) for path in paths]"
        )
    discovery = discover(path)
    if run is None and len(discovery.runs) > 1:
        newest, count = readable(discovery.runs[0].name), len(discovery.runs)
        _log.warning("%s holds %d runs: reading the newest, %s; run=NAME reads another", path, count, newest)
    return discovery


def _stored_files(by_rank: Mapping[int, LoadedRank]) -> dict[str, list[Path]]:
    """Return the files of the tables that SQL may read as they lie in the cache: no other rank changes their rows.

    Empty where a rank is not in the cache, or not on this machine.
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

    begun = shown = time.monotonic()
    handle: Any = None

    def show(done: int, total: int, name: str) -> None:
        nonlocal shown, handle
        now = time.monotonic()
        if now - begun < _MOMENT_S or (now - shown < _REDRAW_S and done < total):
            return
        shown = now
        text = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        html = display.HTML(
            f'<progress value="{done}" max="{max(total, 1)}"></progress> reading {escape(name)}, {text}'
        )
        if done >= total:
            html = display.HTML(f"<small>read {total / 1e6:,.0f} MB in {now - begun:.1f} s</small>")
        if handle is None:
            handle = display.display(html, display_id=True)
        else:
            handle.update(html)

    return show
