"""Stream syncs: offloading syncs a stream of its own after other launches."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, NodeKind

US = 1_000
STEP = 10_000 * US
RECORD_THREAD = 200


def _offloads(rank: int, copies_end_us: tuple[int, ...]) -> Trace:
    """Copy gradients on stream 33 from another thread, compute on stream 7, and sync the copies in each step."""
    trace = Trace(rank, 2)
    for step, copy_ends in enumerate(copies_end_us):
        at = step * STEP
        trace.step(step, at, STEP)
        copy = (copy_ends - 1_000) * US
        trace.memcpy(
            at + copy,
            1_000 * US,
            kind="DtoH (Device -> Pinned)",
            stream=33,
            launch_at=at + 5 * US,
            thread=RECORD_THREAD,
        )
        trace.kernel("backward", at + 100 * US, 1_000 * US, launch_at=at + 10 * US)
        returned = max(copy_ends, 30) + 8
        trace.launch(9_000 + step, at + 20 * US, (returned - 20) * US, name="cudaStreamSynchronize")
        trace.kernel("update", at + (returned + 20) * US, 100 * US, launch_at=at + (returned + 10) * US)
    return trace


@pytest.mark.parametrize("early_step_us", [4_000, 1_050])
def test_a_sync_that_returns_with_the_copies_waits_for_their_stream(early_step_us: int) -> None:
    """It does so, too, in a step in which the other stream ends last."""
    graph = graph_of(table_set({rank: _offloads(rank, (3_000, early_step_us, 5_000)) for rank in range(2)}))
    nodes, edges, names = graph.nodes, graph.edges, np.array(graph.names)
    of_syncs = (edges.kind == EdgeKind.SYNC) & (nodes.kind[edges.target] == NodeKind.RETURN)
    assert set(names[nodes.name[edges.source[of_syncs]]].tolist()) == {"Memcpy DtoH (Device -> Pinned)"}
    assert edges.lag[of_syncs].max() <= 30 * US
