"""Satisfied waits: places at which hosts wait for the device without a call in the trace, where the work had ended.

Untraced waits are found by the silence of the host. If the awaited work has ended by then, there is no silence, and so
no sign of the wait in the trace. It still matters: if an edit lets the host come earlier, it has to wait.

    a silence      host  calls ....~~~~~~~~~~~~~~~| launch        no silence   host  calls ...............| launch
                   work  ======================== |                            work  ==========|
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, EdgeKind
from usp_prof.replay.host_waits import CONTRADICTED, LEAST_WAITS
from usp_prof.replay.rank_edges import RankEdges
from usp_prof.replay.rank_nodes import RankNodes

_LEAST_SHARE = 0.25
"""Minimum number of waits that show which work is awaited at a place, as a share of its launches."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """A launch at a place of waits, and the work that the host waited for, or would have waited for."""

    host: int
    """Node of the launch."""
    place: str
    work: int
    """Node of the work; -1 if unknown because there was no silence."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Work that is awaited at a place, the same in every step: by name, and counted back from the last one launched."""

    name: str
    before_last: int
    """Number of launches of this name between this work and the host's launch."""
    usual_lag_ns: int
    """Median time from the end of the work to the launch, where a silence shows it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacesOfRank:
    """The launches of one rank's host by place, the waits among them, and the device work that can be awaited."""

    nodes: RankNodes
    edges: RankEdges
    host: Ints
    """Nodes of the launches at the places of waits."""
    place: list[str]
    """By launch."""
    awaited: Ints
    """By launch: the work that the host waited for before it; -1 if there was no silence."""

    _work: dict[str, Ints] = field(default_factory=dict, init=False, repr=False)

    def waits(self) -> list[_Wait]:
        """Return all launches at these places."""
        return [_Wait(*row) for row in zip(self.host.tolist(), self.place, self.awaited.tolist(), strict=True)]

    def launched_before(self, host: int, name: str) -> Ints:
        """Return the device work of this name that was launched before a host's launch, in order."""
        if name not in self._work:
            code, names = self.nodes.name
            number = names.index(name) if name in names else -1
            rows = np.flatnonzero(self.nodes.of_device & (code == number))
            self._work[name] = rows[np.lexsort((self.nodes.start[rows], self.nodes.launched_at[rows]))]
        work = self._work[name]
        return work[: np.searchsorted(self.nodes.launched_at[work], self.nodes.start[host])]

    def lag_ns(self, wait: _Wait) -> int:
        """Return the time from the end of the work to the launch."""
        return int(self.nodes.start[wait.host] - self.nodes.end[wait.work])


def add_satisfied_waits(ranks: Sequence[PlacesOfRank]) -> None:
    """Add an edge from the awaited work to each launch at a place where hosts always wait for the same work.

    Places are left out if some hosts continued there although this work had not ended.
    """
    awaited_at = _awaited_at(ranks)
    satisfied = [_satisfied(places, awaited_at) for places in ranks]
    refuted = {
        wait.place
        for places, waits in zip(ranks, satisfied, strict=True)
        for wait in waits
        if places.lag_ns(wait) < -LEFT_BY_CLOCKS_NS
    }
    for places, all_waits in zip(ranks, satisfied, strict=True):
        waits = [wait for wait in all_waits if wait.place not in refuted]
        if waits:
            # The host continued for other reasons, so the edge is over at least a moment before.
            lag = np.array([min(awaited_at[wait.place].usual_lag_ns, places.lag_ns(wait) - 1) for wait in waits])
            source, target = np.array([wait.work for wait in waits]), np.array([wait.host for wait in waits])
            places.edges.add(source, target, lag, EdgeKind.SYNC)


def _awaited_at(ranks: Sequence[PlacesOfRank]) -> dict[str, _Awaited]:
    """Return by place the work that nearly all silences there wait for, if there are enough of them."""
    # By place: for each silence, the name and number of the work, and the lag.
    shown: dict[str, list[tuple[tuple[str, int], int]]] = {}
    for places in ranks:
        for wait in places.waits():
            if wait.work >= 0:
                shown.setdefault(wait.place, []).append((_counted_back(places, wait), places.lag_ns(wait)))
    launches = Counter(place for places in ranks for place in places.place)
    awaited_at = {}
    for place, cases in shown.items():
        (name, before_last), times = Counter(work for work, _ in cases).most_common(1)[0]
        if times >= max(LEAST_WAITS, (1 - CONTRADICTED) * len(cases), _LEAST_SHARE * launches[place]):
            awaited_at[place] = _Awaited(name, before_last, int(np.median([lag_ns for _, lag_ns in cases])))
    return awaited_at


def _counted_back(places: PlacesOfRank, wait: _Wait) -> tuple[str, int]:
    """Return the name of the awaited work, and its number counted back from the last one launched; 0 is the last."""
    code, names = places.nodes.name
    name = names[code[wait.work]]
    launched = places.launched_before(wait.host, name)
    return name, len(launched) - 1 - int(np.flatnonzero(launched == wait.work)[0])


def _satisfied(places: PlacesOfRank, awaited_at: dict[str, _Awaited]) -> list[_Wait]:
    """Return the launches without a silence at these places, with the work that they would have waited for."""
    satisfied = []
    for wait in places.waits():
        if wait.work < 0 and wait.place in awaited_at:
            awaited = awaited_at[wait.place]
            launched = places.launched_before(wait.host, awaited.name)
            if len(launched) > awaited.before_last:
                satisfied.append(_Wait(wait.host, wait.place, int(launched[-1 - awaited.before_last])))
    return satisfied
