"""Shares: ranks whose tables a worker analyzes, with the facts that need all ranks of the run.

Most of an analysis is about one rank at a time. `of_each_rank` lets workers do that if a run has some. It sends them
shares of ranks and returns their results in order.

    head      share of ranks 0..31: location of their tables, their axes, steps and calls
    worker    measure(share, 0), measure(share, 1), ...     arrays per step or per collective
    head      takes the results share by share, and reduces over all ranks
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Generic, TypeVar

from usp_prof.tables.table_set import FEW_RANKS, Source, TableSet

Facts = Mapping[object, object]
"""Facts that need all ranks of a run, by key of `memo`."""

Made = TypeVar("Made")

RANKS_OF_SHARE = 32
"""Large enough to make sending a share cheap, small enough that a thousand ranks keep 32 workers busy."""


Value = TypeVar("Value")


class Common(Generic[Value]):
    """An object sent to workers with every share: pickled once, and unpickled once per worker."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._pickled = b""

    def __reduce__(self) -> tuple[Callable[[bytes], Common[Value]], tuple[bytes]]:
        """Pickle the bytes."""
        self._pickled = self._pickled or pickle.dumps(self.value)
        return _unpickled, (self._pickled,)


@lru_cache(maxsize=8)
def _unpickled(pickled: bytes) -> Common[Any]:
    return Common(pickle.loads(pickled))  # noqa: S301 - pickled by this package


@dataclass(frozen=True, slots=True)
class _Share:
    """Some ranks of a run, as sent to a worker."""

    sources: dict[int, Source]
    open_tables: Common[partial[TableSet]]
    """Makes a table set with what is known about the run."""
    run_facts: Facts


def of_each_rank(
    tables: TableSet,
    measure: Callable[[TableSet, int], Made],
    ranks: Sequence[int] | None = None,
    facts_for: Callable[[Sequence[int]], Facts] = lambda _: {},
) -> Iterator[Made]:
    """Yield `measure(tables, rank)` of each rank (all without `ranks`), in order; with many ranks, by workers.

    `measure` uses the tables of its rank, and the facts of the whole run that `facts_for` returns. The results of a
    share come back together.
    """
    chosen = tables.ranks if ranks is None else ranks
    if tables.workers is None or len(chosen) <= FEW_RANKS:
        return (measure(tables, rank) for rank in chosen)
    open_tables = partial(
        TableSet,
        manifest=tables.manifest,
        topology=tables.topology,
        assumptions=tables.assumptions,
        incomparable=tables.incomparable,
        cut_steps=tables.cut_steps,
    )
    of_run = tables.memo("facts of the run", lambda: Common(open_tables))
    ranks_of_shares = (chosen[first : first + RANKS_OF_SHARE] for first in range(0, len(chosen), RANKS_OF_SHARE))
    shares = (_Share(tables.sources_of(of_share), of_run, facts_for(of_share)) for of_share in ranks_of_shares)
    return chain.from_iterable(tables.workers.map(partial(_measured, measure), shares))


def _measured(measure: Callable[[TableSet, int], Made], share: _Share) -> list[Made]:
    """Analyze the ranks of a share one after the other; only one is in memory."""
    tables = share.open_tables.value(share.sources, run_facts=share.run_facts)
    results = []
    for rank in tables.ranks:
        results.append(measure(tables, rank))
        tables.release(rank)
    return results
