"""Dependencies of a node: never on its own results, even if the clocks of host and device differ widely."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.longest_path import replay

US = 1_000
EARLY = 35 * US


def _synchronised(early: int) -> Trace:
    """Let the host wait for a kernel and launch one afterwards that seems to have run `early` before that."""
    trace = Trace().step(0, 0, 1_000 * US).kernel("first", 110 * US, 190 * US, launch_at=100 * US)
    trace.event("cudaStreamSynchronize", "cuda_runtime", 200 * US, 110 * US, args={"correlation": 1})
    return trace.kernel("second", 330 * US - early, 10 * US, launch_at=330 * US)


@pytest.mark.parametrize("early", [-US, EARLY])
def test_a_host_that_waits_does_not_wait_for_what_it_launches_afterwards(early: int) -> None:
    graph = graph_of(table_set({0: _synchronised(early)}))
    edges = graph.edges
    waits = edges.kind == EdgeKind.SYNC
    assert [graph.names[graph.nodes.name[node]] for node in edges.source[waits]] == ["first"]


@pytest.mark.parametrize("early", [-US, EARLY])
def test_work_launched_after_a_wait_moves_with_the_work_before_it(early: int) -> None:
    graph = graph_of(table_set({0: _synchronised(early)}))
    first = np.arange(len(graph.nodes)) == np.flatnonzero(graph.nodes.kind == NodeKind.COMPUTE)[0]
    saved = 50 * US
    shorter = graph.with_changes(duration=np.where(first, graph.duration - saved, graph.duration))
    second = np.flatnonzero(graph.nodes.kind == NodeKind.COMPUTE)[-1]
    assert (replay(shorter).start - replay(graph).start)[second] == -saved


SECOND_THREAD = 2


def _two_streams(launched: int) -> Trace:
    """Let work on stream 7 start 1 us after work on stream 20 ends, and be launched `launched` before that."""
    trace = Trace().step(0, 0, 3_000 * US)
    trace.kernel("first", 205 * US, 899 * US, stream=20, launch_at=200 * US)
    return trace.kernel("second", 1_105 * US, 10 * US, launch_at=1_105 * US - launched, thread=SECOND_THREAD)


@pytest.mark.parametrize(("launched", "moves"), [(15 * US, 0), (600 * US, 100 * US)])
@pytest.mark.parametrize("is_called_before", [False, True])
def test_work_waits_for_another_stream_only_if_its_launch_does_not_explain_its_start(
    launched: int, moves: int, *, is_called_before: bool
) -> None:
    """The wait call of a second thread may come before the other thread launches what is waited for."""
    trace = _two_streams(launched)
    if is_called_before:
        trace.event("cudaStreamWaitEvent", "cuda_runtime", 150 * US, 5 * US, tid=SECOND_THREAD)
    graph = graph_of(table_set({0: trace}))
    name = [graph.names[code] if code >= 0 else "" for code in graph.nodes.name]
    first, second = name.index("first"), name.index("second")
    duration = graph.duration.copy()
    duration[first] += 100 * US
    later = replay(graph.with_changes(duration=duration)).start - replay(graph).start
    assert later[second] == moves


@pytest.mark.parametrize("late", [-30, 40])
def test_a_sync_whose_stream_was_soon_done_waits_for_what_ended_with_it(late: int) -> None:
    """The device clock may be off by some microseconds, so the work may seem to end after the call's return."""
    trace = Trace()
    trace.kernel("exchange", 100 * US, 5_000 * US, stream=20, launch_at=90 * US)
    trace.memcpy(300 * US, 5 * US, stream=25, launch_at=280 * US)
    returned = (5_100 - late) * US
    trace.event("cudaStreamSynchronize", "cuda_runtime", 295 * US, returned - 295 * US, args={"correlation": 1})
    trace.kernel("next", 5_300 * US, 10 * US, launch_at=5_200 * US)
    graph = graph_of(table_set({0: trace}))
    syncs = graph.edges.take(graph.edges.kind == EdgeKind.SYNC)
    assert [graph.names[name] for name in graph.nodes.name[syncs.source].tolist()] == ["exchange"]
