"""Batches in the replay: a kernel waits for the other sides of its own messages only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.longest_path import replay
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Ints
    from usp_prof.whatif.predict import Prediction

US = 1_000
WORLD = 4
STEP = 10_000 * US
TRANSFER = 100 * US


def _ring(rank: int, computes_us: list[int], hops: int = 2) -> Trace:
    """Compute, then send to the next rank and receive from the previous one, several times in each of three steps."""
    trace = Trace(rank, WORLD).group("1", range(WORLD))
    neighbors = [("send", (rank + 1) % WORLD), ("recv", (rank - 1) % WORLD)]
    around = [(rank - 1) % WORLD, rank, (rank + 1) % WORLD]
    for step in range(3):
        begin = step * STEP
        trace.step(step, begin, STEP)
        ready = np.full(WORLD, begin + 1_000 * US)
        for hop in range(hops):
            start = ready + np.array(computes_us) * US
            launched = begin + (50 + 100 * hop) * US
            trace.kernel("work", int(ready[rank]), computes_us[rank] * US, launch_at=launched)
            for number, (op, peer) in enumerate(neighbors):
                args = {"Collective name": op, "Process Group Name": "1", "Group size": WORLD}
                args["Dst Rank" if op == "send" else "Src Rank"] = peer
                trace.op("record_param_comms", launched + (20 + 5 * number) * US, 3 * US, args=args)
            end = int(start[around].max()) + TRANSFER
            name = "ncclDevKernel_SendRecv(x)"
            trace.kernel(name, int(start[rank]), end - int(start[rank]), launch_at=launched + 40 * US)
            ready = np.array([max(start[r - 1], start[r], start[(r + 1) % WORLD]) for r in range(WORLD)]) + TRANSFER
    return trace


def _run(computes_us: list[int]) -> dict[int, Trace]:
    return {rank: _ring(rank, computes_us) for rank in range(WORLD)}


def test_the_unedited_replay_gives_the_recording() -> None:
    graph = graph_of(table_set(_run([200, 900, 200, 200])))
    timeline = replay(graph)
    assert (timeline.start == graph.nodes.start).all()
    assert (timeline.end == graph.nodes.end).all()


def test_a_kernel_waits_for_its_neighbors_and_not_for_the_whole_ring() -> None:
    graph = graph_of(table_set(_run([200, 900, 200, 200])))
    nodes, transfer = graph.nodes, graph.transfer
    rows = nodes.of_rank(3)
    first_exchange = rows[nodes.kind[rows] == NodeKind.COMMUNICATION][0]
    assert transfer[first_exchange] == TRANSFER  # rank 3 does not meet rank 1, which starts 700 us later
    met = graph.met.other[graph.met.node == first_exchange]
    assert sorted(nodes.rank[met].tolist()) == [0, 2, 3]


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_repaired_rank_of_a_ring_gives_the_run_without_its_delay(rank: int) -> None:
    computes_us = [200] * WORLD
    computes_us[rank] = 900
    repaired = predict(table_set(_run(computes_us)), [Edit("rank_as_peers", str(rank))])
    usual = predict(table_set(_run([200] * WORLD)), [])
    assert _exchanges(repaired).tolist() == _exchanges(usual).tolist()


def _exchanges(prediction: Prediction) -> Ints:
    """Return how long after the start of the last step's compute each exchange ends."""
    nodes, timeline = prediction.graph.nodes, prediction.timeline
    in_step = nodes.step == 2
    begin = timeline.start[in_step & (nodes.kind == NodeKind.COMPUTE)].min()
    return timeline.end[in_step & (nodes.kind == NodeKind.COMMUNICATION)] - begin


def test_a_batch_whose_first_message_has_no_other_side_waits_for_the_others() -> None:
    """The trace of rank 2 is missing, so one message of rank 3 has one side. Rank 3 still sends to rank 0."""
    traces = _run([200, 200, 200, 900])
    del traces[2]
    graph = graph_of(table_set(traces))
    rows = graph.nodes.of_rank(3)
    exchanges = rows[graph.nodes.kind[rows] == NodeKind.COMMUNICATION]
    assert (graph.nodes.call[exchanges] >= 0).all()
    assert graph.tied[exchanges].all()
