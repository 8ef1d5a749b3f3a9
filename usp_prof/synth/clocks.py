"""What does each host's clock show?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.synth.declaration import Declaration

BASE_NS = 1_760_000_000_000_000_000
"""Wall time of the traces' base."""

START_NS = 60_000_000_000
"""How long after its base the run begins, so that no offset makes times negative."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """One host's clock: it shows true time, plus an offset at the run's beginning, plus a drift."""

    host: int
    offset_ns: int
    drift_ppm: float

    def local(self, true_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give what the clock shows, after the base."""
        drift: NDArray[np.int64] = np.rint(true_ns * self.drift_ppm * 1e-6).astype(np.int64)
        return true_ns + drift + (START_NS + self.offset_ns)


def clocks(run: Declaration) -> tuple[HostClock, ...]:
    """Give each rank the clock of its host."""
    declared, hosts = run.clocks, -(-run.mesh.world // run.clocks.ranks_per_host)
    draw = np.random.default_rng([run.seed, 11])
    offsets = draw.integers(-declared.offset_bound_ns, declared.offset_bound_ns + 1, hosts)
    drifts = draw.uniform(-declared.drift_bound_ppm, declared.drift_bound_ppm, hosts)
    offsets[0], drifts[0] = 0, 0.0
    offsets[: len(declared.offset_ns)] = declared.offset_ns[:hosts]
    drifts[: len(declared.drift_ppm)] = declared.drift_ppm[:hosts]
    made = [HostClock(host, int(offsets[host]), float(drifts[host])) for host in range(hosts)]
    return tuple(made[rank // declared.ranks_per_host] for rank in range(run.mesh.world))
