"""Sampling: a choice of ranks for runs with too many to read.

    outliers        in each pipeline stage the ranks that stand out, and two more typical ranks than that as peers
    one-per-stage   the first rank of each pipeline stage: together they form one pipeline
    sample:N        N ranks, spread evenly over the run

Outliers are found from compute and communication per step: three columns of one table of every rank, so all traces are
first read into the store. The other choices read only the chosen traces, if `run.json` names the stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from usp_prof.columns.rows import rows_by_code
from usp_prof.columns.statistics import outliers
from usp_prof.columns.table import Columns, table_of
from usp_prof.contract import Manifest
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.topology import Axis
from usp_prof.store.entry import StoredTable
from usp_prof.tables.parallelism.group_axes import groups_of, world_size
from usp_prof.tables.parallelism.mesh import Job, lay_out
from usp_prof.tables.table_set import Source


class Kind(StrEnum):
    """Method of choosing ranks."""

    OUTLIERS = "outliers"
    ONE_PER_STAGE = "one-per-stage"
    SAMPLE = "sample"


_PEERS_BEYOND_OUTLIERS = 2
"""With more typical ranks than outliers, medians over peers stay typical, even if one is missing."""
_GOLDEN = (np.sqrt(5) - 1) / 2
_NAMES = (str(Kind.OUTLIERS), str(Kind.ONE_PER_STAGE), f"{Kind.SAMPLE}:N")


@dataclass(frozen=True, slots=True)
class Sampling:
    """A choice of ranks by their properties, not by their numbers."""

    kind: Kind
    count: int = 0
    """Number of ranks; 0: as many as the choice finds."""

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """Parse `outliers`, `one-per-stage` or `sample:N`."""
        name, _, count = text.partition(":")
        if name == Kind.SAMPLE:
            if not (count.isdecimal() and int(count)):
                raise UsageError(f"{text!r} does not say how many ranks", hint=f"write it like {Kind.SAMPLE}:16")
            return cls(Kind.SAMPLE, int(count))
        if text not in _NAMES:
            nearest = unknown_name("choice of ranks", text, _NAMES).hint
            raise UsageError(f"ranks {text!r} is neither a list of numbers nor a choice of ranks", hint=nearest)
        return cls(Kind(text))

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}" if self.count else str(self.kind)

    def before_reading(self, ranks: Sequence[int], manifest: Manifest | None) -> tuple[int, ...] | None:
        """Choose from what is known before any trace is read; `None` if the tables of all ranks are needed."""
        if self.kind is Kind.SAMPLE:
            return _spread(ranks, self.count)
        if self.kind is Kind.ONE_PER_STAGE and manifest is not None and manifest.coordinates:
            return _first_of_each(_stages_declared(ranks, manifest))
        return None

    def after_reading(self, sources: Mapping[int, Source], manifest: Manifest | None) -> tuple[int, ...]:
        """Choose by the tables of all ranks."""
        stages = _stages(sources, manifest)
        if self.kind is Kind.OUTLIERS:
            return _outliers(sources, stages or dict.fromkeys(sources, 0))
        if not stages:
            raise UsageError(
                "the pipeline stages of this run are unknown",
                hint=f"choose ranks by number, or {Kind.SAMPLE}:4; stages are known from the recorder's run.json",
            )
        return _first_of_each(stages)


def _spread(ranks: Sequence[int], count: int) -> tuple[int, ...]:
    """Choose ranks by multiples of the golden ratio: spread evenly, and not at one mesh coordinate."""
    place = np.modf(np.arange(len(ranks)) * _GOLDEN)[0]
    return tuple(sorted(ranks[row] for row in np.argsort(place, kind="stable")[:count].tolist()))


def _first_of_each(stages: Mapping[int, int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    for rank in sorted(stages):
        first.setdefault(stages[rank], rank)
    return tuple(sorted(first.values()))


def _stages_declared(ranks: Iterable[int], manifest: Manifest) -> dict[int, int]:
    return {rank: manifest.coordinates.get(str(rank), {}).get(Axis.PP, 0) for rank in ranks}


def _stages(sources: Mapping[int, Source], manifest: Manifest | None) -> dict[int, int]:
    """Return each rank's coordinate on the pipeline axis; empty if the mesh is unknown."""
    if manifest is not None and manifest.coordinates:
        return _stages_declared(sources, manifest)
    topology, unknown = lay_out(groups_of(sources), Job(sorted(sources), world_size(sources)), manifest)
    if unknown or not set(sources) <= topology.coordinates.keys():
        return {}
    return {rank: topology.coordinates[rank].get(Axis.PP, 0) for rank in sources}


def _outliers(sources: Mapping[int, Source], stages: Mapping[int, int]) -> tuple[int, ...]:
    """Choose in each stage the ranks with outlying compute or communication, and the most typical others."""
    ranks = np.array(sorted(sources), np.int64)
    stage = np.array([stages[rank] for rank in ranks.tolist()], np.int64)
    times = np.array([_times_of_step(sources[rank]) for rank in ranks.tolist()])
    chosen = np.zeros(len(ranks), bool)
    for rows in rows_by_code(stage).values():
        own = times[rows]
        is_odd = outliers(own[:, 0]) | outliers(own[:, 1])
        medians = np.median(own, axis=0)
        distance = (np.abs(own - medians) / np.maximum(medians, 1.0)).sum(axis=1)
        by_distance = np.lexsort((rows, distance, is_odd))  # outliers come last
        peers = min(int(is_odd.sum()) + _PEERS_BEYOND_OUTLIERS, int((~is_odd).sum()))
        typical = by_distance[:peers]
        chosen[rows[is_odd]] = True
        chosen[rows[typical]] = True
    return tuple(ranks[chosen].tolist())


def _times_of_step(source: Source) -> tuple[float, float]:
    """Return a rank's compute and communication per step in ns; overlapping work counts multiple times."""
    work = _columns(source, "activities", "kind", "dur_ns", "step")
    inside = work["step"] >= 0
    steps = max(1, len(np.unique(work["step"][inside])))
    total = [int(work["dur_ns"][inside & work.matches("kind", kind)].sum()) for kind in ("compute", "communication")]
    return total[0] / steps, total[1] / steps


def _columns(source: Source, table: str, *names: str) -> Columns:
    """Read some columns of a table without keeping them."""
    view = source.view(table)
    return Columns(view.only(names) if isinstance(view, StoredTable) else table_of(view).select(names))
