"""Satisfied waits: places at which hosts wait for the device without a call in the trace, where the work had ended.

Untraced waits are found by the silence of the host. If the awaited work has ended by then, there is no silence, and so
no sign of the wait in the trace. It still matters: if an edit lets the host come earlier, it has to wait.
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

_SHARE = 0.25
"""Minimum number of waits that show which work is awaited at a place, as a share of its launches."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacesOfRank:
    """The launches of one rank's host by place, the waits among them, and the device work that can be awaited."""

    nodes: RankNodes
    edges: RankEdges
    launched_at: Ints
    host: Ints
    """Launches at the places of waits."""
    place: list[str]
    awaited: Ints
    """The work that the host waited for before each launch; -1 if there was no silence."""

    _work: dict[str, Ints] = field(default_factory=dict, init=False, repr=False)

    def launched_before(self, host: int, name: str) -> Ints:
        """Return the device work of this name that was launched before a host's launch, in order."""
        if name not in self._work:
            code, names = self.nodes.name
            number = names.index(name) if name in names else -1
            rows = np.flatnonzero(self.nodes.of_device & (code == number))
            self._work[name] = rows[np.lexsort((self.nodes.start[rows], self.launched_at[rows]))]
        work = self._work[name]
        return work[: np.searchsorted(self.launched_at[work], self.nodes.start[host])]


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Work that is awaited at a place: the one of this name that was launched as many times before the last one."""

    name: str
    before_last: int


def add_satisfied_waits(of_ranks: Sequence[PlacesOfRank]) -> None:
    """Add an edge from the awaited work to each launch at a place where hosts always wait for the same work.

    Places are left out if some hosts continued there although this work had not ended.
    """
    seen: dict[str, Counter[_Awaited]] = {}
    lags_ns: dict[str, list[int]] = {}
    for own in of_ranks:
        for host, place, work in zip(own.host.tolist(), own.place, own.awaited.tolist(), strict=True):
            if work >= 0:
                seen.setdefault(place, Counter())[_awaited(own, host, work)] += 1
                lags_ns.setdefault(place, []).append(int(own.nodes.start[host] - own.nodes.end[work]))
    launches = Counter(place for own in of_ranks for place in own.place)
    same: dict[str, _Awaited] = {}
    for place, cases in seen.items():
        work, times = cases.most_common(1)[0]
        if times >= max(LEAST_WAITS, (1 - CONTRADICTED) * cases.total(), _SHARE * launches[place]):
            same[place] = work
    added = [_satisfied(own, same) for own in of_ranks]
    wrong = {
        place
        for own, rows in zip(of_ranks, added, strict=True)
        for host, place, work in rows
        if _since(own.nodes, host, work) < -LEFT_BY_CLOCKS_NS
    }
    for own, rows in zip(of_ranks, added, strict=True):
        certain = [row for row in rows if row[1] not in wrong]
        if certain:
            # The host continued for other reasons, so the edge is over at least a moment before.
            lag = [
                min(int(np.median(lags_ns[place])), _since(own.nodes, host, work) - 1) for host, place, work in certain
            ]
            source, target = np.array([work for *_, work in certain]), np.array([host for host, *_ in certain])
            own.edges.add(source, target, np.array(lag), EdgeKind.SYNC)


def _awaited(own: PlacesOfRank, host: int, work: int) -> _Awaited:
    code, names = own.nodes.name
    name = names[code[work]]
    launched = own.launched_before(host, name)
    return _Awaited(name, len(launched) - 1 - int(np.flatnonzero(launched == work)[0]))


def _satisfied(own: PlacesOfRank, same: dict[str, _Awaited]) -> list[tuple[int, str, int]]:
    """Return the launches without a silence at these places, and the work that they would have waited for."""
    rows = []
    for host, place, work in zip(own.host.tolist(), own.place, own.awaited.tolist(), strict=True):
        if work < 0 and place in same:
            launched = own.launched_before(host, same[place].name)
            number = len(launched) - 1 - same[place].before_last
            if number >= 0:
                rows.append((host, place, int(launched[number])))
    return rows


def _since(nodes: RankNodes, host: int, work: int) -> int:
    return int(nodes.start[host] - nodes.end[work])
