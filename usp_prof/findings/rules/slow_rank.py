"""One rank computes slower than its peers.

What it finds
    A rank whose compute for the same work takes, in the median over steps, at least 5 % longer than the median of its
    peers (same pipeline stage, all other coordinates free). Repeats of one kernel on one machine differ by 1 to 2 %,
    and boards of one model by up to about 3 %: 5 % is neither.

Why it costs time
    All other ranks of its groups wait in every collective until it arrives. The wait shows as long communication on the
    *others*: the slow rank is the one with the shortest.

What to do
    Look at the rank's clocks, temperature and power (`nvidia-smi -q -d CLOCK,PERFORMANCE`), at other processes on its
    host, and take the machine out. torchtitan, Megatron-LM and DeepSpeed have no setting for it; Megatron-LM's
    `--log-straggler` and NVIDIA's resiliency extension watch for it.

How the gain is predicted
    The run is replayed with the rank's compute scaled to the median of its peers (`rank_as_peers`).

When it is wrong
    When the rank has more work by design (experts, uneven sequence lengths, an uneven cut of layers within a stage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.peers import slowness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "slow-rank"
TITLE = "A rank computes slower than its peers"
SLOW = 1.05


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare each rank's compute with its peers'."""
    for each in slowness(tables, graph_of(tables)).values():
        if each.ratio >= SLOW:
            yield Draft(
                f"rank {each.rank} computes {each.ratio:.2f} times as long as its peers",
                {"rank": each.rank},
                {"compute_ns": each.compute_ns, "peers_ns": each.peers_ns, "peers": len(each.peers)},
                Edit("rank_as_peers", str(each.rank)),
                "check its clocks, temperature and neighbours; take the machine out",
                least_gain=0.01,
            )
