"""Shares: ranks whose tables are measured by a worker, with what all ranks of the run together tell of them.

Most of an analysis is about one rank at a time. `of_each_rank` has it done by workers where a run has some: it sends
them shares of some ranks, and gives what they made of each rank in order.

    head      share of ranks 0..31: where their tables lie, their axes, steps and calls
    worker    measure(share, 0), measure(share, 1), ...     arrays per step or per collective
    head      takes these from one share after the other, and reduces over all ranks
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from usp_prof.tables.table_set import FEW_RANKS, TableSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from usp_prof.contract import Manifest
    from usp_prof.model.selection import Assumptions
    from usp_prof.model.topology import Topology
    from usp_prof.tables.table_set import Source

    Known = Mapping[object, object]
    """By key of `memo` what all ranks of a run tell together."""

Item = TypeVar("Item")
Made = TypeVar("Made")

RANKS_OF_SHARE = 32
"""Enough that sending a share costs little beside measuring it, and few enough that a thousand ranks keep 32 busy."""


class Workers(Protocol):
    """Who computes what can be computed apart."""

    def each(self, function: Callable[[Item], Made], items: Iterable[Item], *, here: bool = False) -> Iterator[Made]:
        """Return `function` of each item, in order; both, and what it gives, can be pickled.

        What needs temporary files of this machine is to be computed `here`, by processes beside this one.
        """
        ...


Value = TypeVar("Value")


class Common(Generic[Value]):
    """Something that goes to workers with every share: pickled once, and unpickled once by each of them."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._pickled = b""

    def __reduce__(self) -> tuple[Callable[[bytes], Common[Value]], tuple[bytes]]:
        """Carry the bytes."""
        self._pickled = self._pickled or pickle.dumps(self.value)
        return _unpickled, (self._pickled,)


@lru_cache(maxsize=8)
def _unpickled(pickled: bytes) -> Common[Any]:
    return Common(pickle.loads(pickled))  # noqa: S301 - what this package has pickled, as executors do


@dataclass(frozen=True, slots=True)
class _OfRun:
    """What a run says beside its tables."""

    manifest: Manifest | None
    topology: Topology
    assumptions: Assumptions
    incomparable: str


@dataclass(frozen=True, slots=True)
class _Share:
    """Some ranks of a run, as they are sent."""

    sources: dict[int, Source]
    of_run: Common[_OfRun]
    known: Known

    def opened(self) -> TableSet:
        """Return their tables."""
        said = self.of_run.value
        tables = TableSet(self.sources, manifest=said.manifest, topology=said.topology, known=self.known)
        tables.assumptions, tables.incomparable = said.assumptions, said.incomparable
        return tables


def of_each_rank(
    tables: TableSet,
    measure: Callable[[TableSet, int], Made],
    ranks: Sequence[int] | None = None,
    known: Callable[[Sequence[int]], Known] = lambda _: {},
    at_once: int | None = None,
) -> Iterator[Made]:
    """Return `measure(tables, rank)` of each rank (all without `ranks`), in order; of many ranks workers measure it.

    `measure` asks for tables of its rank, and of what is known of the run as a whole for what `known` gives. A share
    has `at_once` ranks (`RANKS_OF_SHARE`, unless said), and what is made of them comes back together.
    """
    chosen = tables.ranks if ranks is None else ranks
    if tables.workers is None or len(chosen) <= FEW_RANKS:
        return (measure(tables, rank) for rank in chosen)
    said = _OfRun(tables.manifest, tables.topology, tables.assumptions, tables.incomparable)
    of_run = tables.memo_as_assumed("said of the run", lambda: Common(said))
    count = at_once or RANKS_OF_SHARE
    dealt = (chosen[first : first + count] for first in range(0, len(chosen), count))
    shares = (_Share(tables.sources_of(of_share), of_run, known(of_share)) for of_share in dealt)
    return chain.from_iterable(tables.workers.each(partial(_measured, measure), shares))


def of_each_block(tables: TableSet, measure: Callable[[Item], Made], blocks: Iterable[Item]) -> Iterator[Made]:
    """Return `measure` of each block, in order; where workers do that they read its files on this machine."""
    return map(measure, blocks) if tables.workers is None else tables.workers.each(measure, blocks, here=True)


def _measured(measure: Callable[[TableSet, int], Made], share: _Share) -> list[Made]:
    """Measure the ranks of a share, one after the other; no more than one is held."""
    tables, made = share.opened(), []
    for rank in tables.ranks:
        made.append(measure(tables, rank))
        tables.let_go(rank)
    return made
