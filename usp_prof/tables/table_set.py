"""Table set: the tables of all ranks, by name, and what is known about the run. Analyses take it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from usp_prof.columns.table import Columns, stacked, table_of
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.health import spans
from usp_prof.model.selection import NOTHING_ASSUMED
from usp_prof.model.topology import Topology
from usp_prof.tables.ranks import UNRECORDED
from usp_prof.tables.steps import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from usp_prof.columns.table import View
    from usp_prof.contract import Manifest
    from usp_prof.model.health import HealthRow
    from usp_prof.model.selection import Selection
    from usp_prof.tables.shares import Workers

T = TypeVar("T")

FEW_RANKS = 64
"""A run of no more ranks keeps all that was read of them."""
HELD_BYTES = 512 << 20
"""Tables of more ranks that are held in memory, counted as if all their columns were."""
_LATELY_USED = 8
"""Ranks that are held in any case: an analysis may set a few beside each other."""


class Source(Protocol):
    """Where one rank's tables come from: memory, or Parquet files in the cache."""

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        ...

    def view(self, name: str) -> View:
        """Return the same, not read before its columns are asked for."""
        ...

    def let_go(self) -> None:
        """Forget what was read and can be read again."""
        ...


class Kept(Protocol):
    """Where something made of these tables can be kept: beside them in the cache."""

    def derived(self, form: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of something, made by `write(folder)` when it is not there yet."""
        ...


class MemorySource:
    """Tables that are already in memory."""

    def __init__(self, tables: Mapping[str, View]) -> None:
        self._tables = {name: table_of(table) for name, table in tables.items()}

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        if name not in self._tables:
            raise unknown_name("table", name, self._tables)
        return self._tables[name]

    def view(self, name: str) -> View:
        """Return the same."""
        found: View = self.table(name)
        return found

    def let_go(self) -> None:
        """Keep all: there is nowhere to read it again."""


class ChangedSource:
    """One rank's tables, some of which are changed when they are asked for; what lies beneath stays as it is."""

    def __init__(self, source: Source, changes: Mapping[str, Callable[[View], View]]) -> None:
        """Take for each table that changes what makes the new one of the one beneath."""
        self._source = source
        self._changes = changes

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        return table_of(self.view(name)) if name in self._changes else self._source.table(name)

    def view(self, name: str) -> View:
        """Return the same, not read before its columns are asked for."""
        view = self._source.view(name)
        return self._changes[name](view) if name in self._changes else view

    def let_go(self) -> None:
        """Forget what was read beneath."""
        self._source.let_go()


class _Held:
    """Tables of ranks as arrays, and what was made of each rank's: of many ranks as much as a bound allows."""

    def __init__(self, sources: Mapping[int, Source]) -> None:
        self._sources = sources
        self._of_rank: dict[int, dict[object, object]] = {}
        """By rank what is held of it; the rank that was asked for last comes last."""
        self._bytes_of_rank: dict[int, int] = {}
        """By rank how much its tables take, were all their columns read."""
        self._bytes = 0
        """Of all ranks that are held."""
        self.has_many = len(sources) > FEW_RANKS

    def once(self, rank: int, key: object, build: Callable[[], T]) -> T:
        """Build something of one rank's tables, and keep it for as long as they are held."""
        held = self._of_rank.setdefault(rank, {})
        if key not in held:
            held[key] = build()
        if self.has_many:
            self._of_rank[rank] = self._of_rank.pop(rank, held)
            self._bound()
        return held[key]  # type: ignore[return-value] # the key names the type

    def has(self, rank: int, key: object) -> bool:
        """Return whether something is held of a rank."""
        return key in self._of_rank.get(rank, {})

    def add(self, rank: int, size: int) -> None:
        """Count a table that is held from now on."""
        self._bytes_of_rank[rank] = self._bytes_of_rank.get(rank, 0) + size
        self._bytes += size

    def let_go(self, rank: int) -> None:
        """Hold nothing of a rank any more."""
        self._of_rank.pop(rank, None)
        self._bytes -= self._bytes_of_rank.pop(rank, 0)
        self._sources[rank].let_go()

    def _bound(self) -> None:
        """Let ranks go until those that are held keep to the bound.

        Analyses take the ranks in turn, so the one that was used last comes again last: it goes first, but for the few
        that may be in use. Were it the one that was used longest ago, each would be gone just before its turn.
        """
        while self._bytes > HELD_BYTES and len(self._of_rank) > _LATELY_USED:
            self.let_go(next(islice(reversed(self._of_rank), _LATELY_USED, None)))


class TableSet:
    """The tables of a run. Derived results are built once and kept (`memo`), those of one rank beside its tables.

    Of many ranks only as much is held in memory as a bound allows; the rest is read from the store again when it is
    asked for.
    """

    def __init__(
        self,
        sources: Mapping[int, Source],
        *,
        manifest: Manifest | None = None,
        health: Iterable[HealthRow] = (),
        topology: Topology | None = None,
        known: Mapping[object, object] | None = None,
    ) -> None:
        """Take the ranks' tables; of a share of a run what is `known` of it as a whole, by the key of `memo`.

        Nothing else can be asked of a share that all ranks tell together.
        """
        self._sources = dict(sorted(sources.items()))
        self._held = _Held(self._sources)
        self._memo: dict[object, object] = dict(known or {})
        self._is_share = known is not None
        self.manifest = manifest
        self.assumptions = NOTHING_ASSUMED
        self.kept: Kept | None = None
        """Where what is made of the tables is kept; only tables as they were read have such a place."""
        self.recorded: TableSet | None = None
        """The tables of which these are what would have been: what belonged together there does so here."""
        self.uneven_steps = ""
        """Why steps of different ranks do not hold the same work; empty where they do."""
        self.incomparable = ""
        """Why ranks cannot be compared: their steps differ, or work is missing; empty where they can."""
        self.topology = topology or Topology()
        self.workers: Workers | None = None
        """Who measures what can be measured of each rank apart; only tables as they were read have some."""
        self.health: list[HealthRow] = sorted(health)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read, in order."""
        return tuple(self._sources)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step over all ranks, as given by hand, else as the manifest says; 0 where nobody tells."""
        return self.assumptions.tokens_per_step or (self.manifest.tokens_per_step if self.manifest is not None else 0)

    def refuse_if_absent(self, selection: Selection, name: str) -> None:
        """Raise `UsageError` for ranks that the run (so named) has not, or steps none of which it has."""
        missing = sorted(set(selection.ranks or ()) - set(self.ranks))
        if missing or selection.ranks == ():
            hint = f"it has {spans(self.ranks)}"
            raise UsageError(f"run {name} has no rank {spans(missing) or '(none was named)'}", hint=hint)
        if selection.first_step is None and selection.last_step is None:
            return
        steps = [self.columns("steps", rank) for rank in self.ranks]
        numbers = sorted({number for of_rank in steps for number in of_rank["step"].tolist()})
        if not any(selection.takes_step(number) for number in numbers):
            is_known = not all(of_rank.matches("source", WINDOW).all() for of_rank in steps)
            hint = f"it has {spans(numbers)}" if is_known else "its steps are not known: leave the choice out"
            raise UsageError(f"run {name} has no step {selection.steps_in_words}", hint=hint)

    def has_device_work(self, rank: int) -> bool:
        """Return whether the trace holds what the rank's device did, be it the CPU; else only its host is known."""
        return not self.columns("ranks", rank).matches("device_kind", UNRECORDED).any()

    def columns(self, name: str, rank: int) -> Columns:
        """Return one table of one rank as arrays."""
        return self.memo_of_rank(rank, name, lambda: self._columns(name, rank))

    def _columns(self, name: str, rank: int) -> Columns:
        view = self.view(name, rank)
        self._held.add(rank, view.num_rows * len(view.schema) * 8)
        return Columns(view)

    def memo_of_rank(self, rank: int, key: object, build: Callable[[], T]) -> T:
        """Build something of one rank's tables, and keep it for as long as they are held."""
        return self._held.once(rank, key, build)

    def only(self, ranks: Iterable[int]) -> TableSet:
        """Return the tables of some ranks and what is known of the run; what is held of their ranks is held once."""
        some = TableSet(
            {rank: self._sources[rank] for rank in ranks},
            manifest=self.manifest,
            health=self.health,
            topology=self.topology,
        )
        some._held = self._held
        some.assumptions, some.incomparable = self.assumptions, self.incomparable
        some.uneven_steps = self.uneven_steps
        some.recorded = self.recorded or self
        return some

    def sources_of(self, ranks: Iterable[int]) -> dict[int, Source]:
        """Return where the tables of some ranks come from."""
        return {rank: self._sources[rank] for rank in ranks}

    def let_go(self, rank: int) -> None:
        """Hold nothing of a rank any more: it is read again when it is asked for."""
        self._held.let_go(rank)

    def together(self, name: str, columns: Sequence[str]) -> Columns:
        """Return some columns of one table of all ranks as arrays."""
        schema = self.view(name, self.ranks[0]).schema
        rows = sum(self.view(name, rank).num_rows for rank in self.ranks)
        fields = [schema.field(column) for column in columns]
        return Columns(stacked((of_rank for _, of_rank in self.one_by_one(name)), fields, rows))

    def one_by_one(self, name: str, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Columns]]:
        """Yield one table per rank (all without `ranks`); with many ranks, tables are released after use."""
        for rank in self.ranks if ranks is None else ranks:
            if not self._held.has_many or self._held.has(rank, name):
                yield rank, self.columns(name, rank)
            else:
                yield rank, Columns(self.view(name, rank))
                self._sources[rank].let_go()

    def view(self, name: str, rank: int) -> View:
        """Return one table of one rank, not read before its columns are asked for."""
        return self._sources[rank].view(name)

    def arrow(self, name: str, ranks: Iterable[int] | None = None) -> pa.Table:
        """Return one table of several ranks (all without `ranks`) as one Arrow table."""
        wanted = self.ranks if ranks is None else tuple(ranks)
        return pa.concat_tables([self._sources[rank].table(name) for rank in wanted]).unify_dictionaries()

    def memo(self, key: object, build: Callable[[], T]) -> T:
        """Build a derived result once."""
        if key not in self._memo:
            if self._is_share:
                raise KeyError(f"{key!r} is made of all ranks: a share of them cannot tell it")
            self._memo[key] = build()
        return self._memo[key]  # type: ignore[return-value] # the key names the type

    def memo_as_assumed(self, key: object, build: Callable[[], T]) -> T:
        """Build a result that follows from the assumptions, once for those that hold now."""
        assumed = self.assumptions
        # The pair keeps the assumptions alive, so that no others can come by their id.
        return self.memo((key, id(assumed)), lambda: (assumed, build()))[1]
