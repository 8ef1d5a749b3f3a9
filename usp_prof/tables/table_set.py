"""Table set: the tables of all ranks, by name, and what is known about the run; input of all analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.table import Columns, View, stacked, table_of
from usp_prof.contract import Manifest
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.health import HealthRow
from usp_prof.model.printable import spans
from usp_prof.model.selection import NOTHING_ASSUMED, Assumptions, Selection
from usp_prof.model.topology import Topology
from usp_prof.tables.events.devices import UNRECORDED
from usp_prof.tables.steps import WINDOW

T = TypeVar("T")
Item = TypeVar("Item")
Made = TypeVar("Made")

FEW_RANKS = 64
"""A run with at most this number of ranks keeps everything in memory."""
HELD_BYTES = 512 << 20
"""Limit of tables in memory with more ranks, counted as if all their columns were read."""
_LATELY_USED = 8
"""Ranks that stay in memory in any case: an analysis may compare a few."""


class Source(Protocol):
    """Source of one rank's tables: memory, or Parquet files in the cache."""

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""

    def view(self, name: str) -> View:
        """Return one table that is not read before its columns are used."""

    def release(self) -> None:
        """Release data that can be read again."""


class Workers(Protocol):
    """Executor of work that can be computed independently."""

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield `function` of each item, in order; both, and the results, must be picklable."""


class Kept(Protocol):
    """Place for data derived from these tables, next to them in the cache."""

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of derived data, made by `write(folder)` if it does not exist."""


class MemorySource:
    """Tables in memory."""

    def __init__(self, tables: Mapping[str, View]) -> None:
        self._tables = {name: table_of(table) for name, table in tables.items()}

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        if name not in self._tables:
            raise unknown_name("table", name, self._tables)
        return self._tables[name]

    def view(self, name: str) -> View:
        """Return the table as a view."""
        view: View = self.table(name)
        return view

    def release(self) -> None:
        """Keep everything: it cannot be read again."""


class ChangedSource:
    """One rank's tables, some of which are changed on request; the original is unchanged."""

    def __init__(self, source: Source, changes: Mapping[str, Callable[[View], View]]) -> None:
        """Store for each changed table the function that builds it from the original."""
        self._source = source
        self._changes = changes
        self._views: dict[str, View] = {}

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        return table_of(self.view(name)) if name in self._changes else self._source.table(name)

    def view(self, name: str) -> View:
        """Return one table that is not read before its columns are used."""
        if name not in self._changes:
            return self._source.view(name)
        view = self._views.get(name)  # another thread may drop it meanwhile
        if view is None:
            view = self._views[name] = self._changes[name](self._source.view(name))
        return view

    def release(self) -> None:
        """Release the original's data and the changed tables, which are built again on request."""
        self._views.clear()
        self._source.release()

    def __reduce__(self) -> tuple[type[ChangedSource], tuple[object, ...]]:
        """Pickle the inputs only: a worker builds the changed tables again."""
        return ChangedSource, (self._source, self._changes)


class _Held:
    """Tables of ranks as arrays, and data derived from each rank, within a memory limit if there are many ranks."""

    def __init__(self, sources: Mapping[int, Source]) -> None:
        self._sources = sources
        self._of_rank: dict[int, dict[object, object]] = {}
        """Data in memory, by rank; the most recently used rank is last."""
        self._bytes_of_rank: dict[int, int] = {}
        """Size of each rank's tables, as if all their columns were read."""
        self._bytes = 0
        """Total size of all ranks in memory."""
        self.has_many = len(sources) > FEW_RANKS

    def once(self, rank: int, key: object, build: Callable[[], T]) -> T:
        """Build a result from one rank's tables once, and keep it while they are in memory."""
        results = self._of_rank.setdefault(rank, {})
        if key not in results:
            results[key] = build()
        if self.has_many:
            self._of_rank[rank] = self._of_rank.pop(rank, results)
            self._bound()
        return results[key]  # type: ignore[return-value] # the key names the type

    def has(self, rank: int, key: object) -> bool:
        """Return whether a rank has data in memory."""
        return key in self._of_rank.get(rank, {})

    def add(self, rank: int, size: int) -> None:
        """Count a table that is in memory from now on."""
        self._bytes_of_rank[rank] = self._bytes_of_rank.get(rank, 0) + size
        self._bytes += size

    def release(self, rank: int) -> None:
        """Release a rank's data."""
        self._of_rank.pop(rank, None)
        self._bytes -= self._bytes_of_rank.pop(rank, 0)
        self._sources[rank].release()

    def _bound(self) -> None:
        """Release ranks until memory is within the limit.

        Analyses take the ranks in turn, so the most recently used one is needed last and is released first, except a
        few that may be in use. Releasing the least recently used one would remove each rank just before its turn.
        """
        while self._bytes > HELD_BYTES and len(self._of_rank) > _LATELY_USED:
            self.release(next(islice(reversed(self._of_rank), _LATELY_USED, None)))


class TableSet:
    """The tables of a run. Derived results are memoized (`memo`), those of one rank next to its tables.

    With many ranks, memory is limited, and the rest is read from the store again on request.
    """

    def __init__(  # noqa: PLR0913 - as many facts are known about a run
        self,
        sources: Mapping[int, Source],
        *,
        manifest: Manifest | None = None,
        health: Iterable[HealthRow] = (),
        topology: Topology | None = None,
        assumptions: Assumptions = NOTHING_ASSUMED,
        incomparable: str = "",
        cut_steps: tuple[int, ...] = (),
        run_facts: Mapping[object, object] | None = None,
    ) -> None:
        """Store the ranks' tables; for a share of a run also `run_facts`, facts about the whole run, by key of `memo`.

        Other facts that need all ranks are not available in a share.
        """
        self._sources = dict(sorted(sources.items()))
        self._held = _Held(self._sources)
        self._run_facts = run_facts
        self._memo: dict[object, object] = {}
        self._assume(assumptions)
        self.manifest = manifest
        self.kept: Kept | None = None
        """Storage of derived data, next to the tables in the cache; None for changed tables."""
        self.recorded: TableSet | None = None
        """Recorded tables from which these were predicted; calls match as they do there. None for recorded tables."""
        self.uneven_steps = ""
        """Why steps of different ranks have different work; empty if they do not."""
        self.incomparable = incomparable
        """Why ranks cannot be compared (different steps or missing work); empty if they can."""
        self.cut_steps = cut_steps
        """Steps cut by the end of the recording; figures leave them out (see `selects`)."""
        self.topology = topology or Topology()
        self.workers: Workers | None = None
        """Executor of per-rank analyses; None for changed tables."""
        self.health: list[HealthRow] = sorted(health)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read, in order."""
        return tuple(self._sources)

    @property
    def declared(self) -> Manifest:
        """What the recorder declared; nothing without a manifest."""
        return self.manifest or Manifest()

    @property
    def assumptions(self) -> Assumptions:
        """What the user supplied that the traces lack; it never changes (see `assuming`)."""
        return self._assumptions

    def assuming(self, assumptions: Assumptions) -> TableSet:
        """Return the same run under other assumptions.

        It shares what was derived from each rank's tables, which no assumption affects, and nothing that was derived
        from the run.
        """
        other = copy(self)
        other._assume(assumptions)  # noqa: SLF001 - same class
        return other

    def _assume(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._memo = dict(self._run_facts or {})

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step over all ranks, from the user or the manifest; 0 if unknown."""
        return self.assumptions.tokens_per_step or self.declared.tokens_per_step

    def refuse_if_absent(self, selection: Selection, name: str) -> None:
        """Raise `UsageError` for ranks that the run (with this name) lacks, or steps of which it has none."""
        missing = sorted(set(selection.ranks or ()) - set(self.ranks))
        if missing or selection.ranks == ():
            hint = f"recorded ranks: {spans(self.ranks)}"
            raise UsageError(f"run {name} has no rank {spans(missing) or '(none was named)'}", hint=hint)
        if selection.first_step is None and selection.last_step is None:
            return
        steps = [self.columns("steps", rank) for rank in self.ranks]
        numbers = sorted({number for of_rank in steps for number in of_rank["step"].tolist()})
        if not any(selection.takes_step(number) for number in numbers):
            is_known = not all(of_rank.matches("source", WINDOW).all() for of_rank in steps)
            hint = f"recorded steps: {spans(numbers)}" if is_known else "its steps are unknown: omit the selection"
            raise UsageError(f"run {name} has no step {selection.steps_in_words}", hint=hint)

    def selects(self, selection: Selection, steps: Ints) -> Flags:
        """Return for each step whether figures of a selection include it: if selected, and not cut by the recording.

        A selection that names a cut step as its first or last step includes it.
        """
        is_selected = selection.takes_steps(steps)
        if not self.cut_steps or selection.last_step is not None or selection.first_step in self.cut_steps:
            return is_selected
        return is_selected & ~np.isin(steps, self.cut_steps)

    def has_device_work(self, rank: int) -> bool:
        """Return whether the trace has device work, including CPU compute, and not only host events."""
        return not self.columns("ranks", rank).matches("device_kind", UNRECORDED).any()

    def ran_on_gpu(self, rank: int) -> bool:
        """Return whether a device other than the CPU did the rank's work, as far as it was recorded."""
        return len(self.columns("kernels", rank)) > 0

    def columns(self, name: str, rank: int) -> Columns:
        """Return one table of one rank as arrays."""
        return self.memo_of_rank(rank, name, lambda: self._columns(name, rank))

    def _columns(self, name: str, rank: int) -> Columns:
        view = self.view(name, rank)
        self._held.add(rank, view.num_rows * len(view.schema) * 8)
        return Columns(view)

    def memo_of_rank(self, rank: int, key: object, build: Callable[[], T]) -> T:
        """Build a result from one rank's tables once, and keep it while they are in memory."""
        return self._held.once(rank, key, build)

    def only(self, ranks: Iterable[int]) -> TableSet:
        """Return the tables of some ranks and the facts of the run; data in memory is shared."""
        share = TableSet(
            {rank: self._sources[rank] for rank in ranks},
            manifest=self.manifest,
            health=self.health,
            topology=self.topology,
            assumptions=self.assumptions,
            incomparable=self.incomparable,
            cut_steps=self.cut_steps,
        )
        share._held = self._held
        share.uneven_steps = self.uneven_steps
        share.recorded = self.recorded or self
        return share

    def sources_of(self, ranks: Iterable[int]) -> dict[int, Source]:
        """Return the sources of some ranks' tables."""
        return {rank: self._sources[rank] for rank in ranks}

    def release(self, rank: int) -> None:
        """Release a rank's data; it is read again on request."""
        self._held.release(rank)

    def together(self, name: str, columns: Sequence[str]) -> Columns:
        """Return some columns of one table of all ranks as arrays."""
        return Columns(stacked((of_rank for _, of_rank in self.one_by_one(name)), columns))

    def one_by_one(self, name: str, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Columns]]:
        """Yield one table per rank (all without `ranks`); with many ranks, tables are released after use."""
        for rank in self.ranks if ranks is None else ranks:
            if not self._held.has_many or self._held.has(rank, name):
                yield rank, self.columns(name, rank)
            else:
                yield rank, Columns(self.view(name, rank))
                self._sources[rank].release()

    def view(self, name: str, rank: int) -> View:
        """Return one table of one rank that is not read before its columns are used."""
        return self._sources[rank].view(name)

    def arrow(self, name: str, ranks: Iterable[int] | None = None) -> pa.Table:
        """Return one table of several ranks (all without `ranks`) as one Arrow table."""
        wanted = self.ranks if ranks is None else tuple(ranks)
        return pa.concat_tables([self._sources[rank].table(name) for rank in wanted]).unify_dictionaries()

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Build a derived result once."""
        if key not in self._memo:
            if self._run_facts is not None:
                raise KeyError(f"{key!r} needs all ranks, but only some were read")
            self._memo[key] = build()
        return self._memo[key]  # type: ignore[return-value] # the key names the type


def memoized(key: str) -> Callable[[Callable[[TableSet], T]], Callable[[TableSet], T]]:
    """Build the result of a function of a run's tables once, and keep it under this key."""

    def memoize(build: Callable[[TableSet], T]) -> Callable[[TableSet], T]:
        @wraps(build)
        def build_once(tables: TableSet) -> T:
            return tables.memo(key, lambda: build(tables))

        return build_once

    return memoize


def memoized_of_rank(build: Callable[[TableSet, int], T]) -> Callable[[TableSet, int], T]:
    """Build the result of a function of one rank's tables once, and keep it while these are in memory."""

    @wraps(build)
    def build_once(tables: TableSet, rank: int) -> T:
        return tables.memo_of_rank(rank, build_once, lambda: build(tables, rank))

    return build_once
