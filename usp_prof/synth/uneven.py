"""How much of an equal share does one rank compute? Crowded experts, contiguous sequences, unequal lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.synth.declaration import FaultKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.synth.declaration import Declaration, Fault
    from usp_prof.synth.mesh import Topology

_SHORTEST = 0.2


class Uneven:
    """One rank's shares. What is done stays the same in sum: equal shares are 1 for everyone."""

    def __init__(self, run: Declaration, topology: Topology, rank: int) -> None:
        self._run = run
        self._topology = topology
        self._rank = rank
        self._lengths: dict[int, NDArray[np.float64]] = {}

    def share(self, step: int, micro_batch: int, *, feeds: bool) -> float:
        """Give the share of a block of a micro-batch: of the feed-forward, where experts are, or of attention."""
        found = 1.0
        for fault in self._run.faults:
            if fault.step not in (-1, step):
                continue
            if fault.kind is FaultKind.EXPERT_IMBALANCE and feeds:
                found *= self._crowded(fault)
            elif fault.kind is FaultKind.CONTIGUOUS_CP and not feeds:
                found *= (2 * self._topology.coordinates(self._rank)["cp"] + 1) / self._run.mesh.cp
            elif fault.kind is FaultKind.UNEQUAL_LENGTHS:
                found *= float(self._drawn(fault, step)[self._topology.coordinates(self._rank)["dp"], micro_batch])
        return found

    def _crowded(self, fault: Fault) -> float:
        """One member of each expert group gets `factor` times its share, the others what is left."""
        members = self._topology.by_rank[self._rank]["ep"].ranks
        crowded = self._topology.by_rank[fault.rank]["ep"].ranks.index(fault.rank)
        if members.index(self._rank) == crowded:
            return fault.factor
        return max(0.0, (len(members) - fault.factor) / (len(members) - 1))

    def _drawn(self, fault: Fault, step: int) -> NDArray[np.float64]:
        """Draw the lengths of a step's micro-batches on all replicas, with mean 1 and spread `factor`."""
        if step not in self._lengths:
            draw = np.random.default_rng([self._run.seed, 11, step])
            wide = draw.standard_normal((self._run.mesh.dp, self._run.work.micro_batches))
            lengths = np.maximum(1 + fault.factor * wide, _SHORTEST)
            self._lengths[step] = lengths / lengths.mean()
        return self._lengths[step]
