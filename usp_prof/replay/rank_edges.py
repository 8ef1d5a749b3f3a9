"""Edges of one rank: collected kind by kind, with the gaps that they leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.replay.graph import EdgeKind
from usp_prof.replay.rank_nodes import RankNodes


@dataclass(frozen=True, slots=True, eq=False)
class RankWaits:
    """One rank's edges by its own node numbers, the remaining gaps, and fixed start times of nodes without edges."""

    source: Ints
    at_end: Flags
    target: Ints
    lag: Ints
    kind: Ints
    gap: Ints
    earliest: Ints


class RankEdges:
    """Edges of one rank, collected kind by kind."""

    def __init__(self) -> None:
        self.columns: list[tuple[Ints, Flags, Ints, Ints, Ints]] = []

    def add(self, source: Ints, target: Ints, lag: Ints, kind: EdgeKind, *, at_end: bool = True) -> None:
        """Make each target start `lag` after the end of its source, or after its start if not `at_end`."""
        self.columns.append((source, np.full(len(source), at_end), target, lag, np.full(len(source), int(kind))))


@dataclass(frozen=True, slots=True, eq=False)
class PartialWaits:
    """One rank while its waits are inferred: its edges so far, and the gaps that they leave unexplained."""

    nodes: RankNodes
    edges: RankEdges
    gap: Ints
