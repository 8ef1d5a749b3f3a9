"""Recorded waits: dependencies between streams and of the host that the trace names, instead of inferred ones."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind

US = 1_000
STEP = 20_000 * US
RECORD, WAIT, SYNC = 9_001, 9_002, 9_003


def _waits(graph: Graph) -> list[tuple[str, str]]:
    """Return the names of awaited and waiting kernels on different streams."""
    edges, nodes, names = graph.edges, graph.nodes, np.array(graph.names)
    between = np.isin(edges.kind, (EdgeKind.WAIT, EdgeKind.ISSUE)) & ~nodes.of_host[edges.target]
    ends = (names[nodes.name[node[between]]].tolist() for node in (edges.source, edges.target))
    return sorted(zip(*ends, strict=True))


def _awaited_by_host(graph: Graph) -> list[str]:
    """Return the names of the work that host calls wait for."""
    edges, nodes, names = graph.edges, graph.nodes, np.array(graph.names)
    returns = (edges.kind == EdgeKind.SYNC) & (nodes.kind[edges.target] == NodeKind.RETURN)
    return names[nodes.name[edges.source[returns]]].tolist()


def _add_wait(trace: Trace, kind: str, call: int, stream: int, awaited: int = -1, record: int = -1) -> Trace:
    """Add a synchronization event as Kineto writes it."""
    args = {"cuda_sync_kind": kind, "stream": stream, "correlation": call, "device": 0, "context": 1}
    if awaited >= 0:
        args |= {"wait_on_stream": awaited, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": 5}
    return trace.event(kind, "cuda_sync", 0, 2 * US, pid=0, tid=stream, args=args)


def _lookup_after_events(*, has_names: bool) -> Trace:
    """Record an event between two kernels of stream 7, and make stream 25 wait for it; the host launches late."""
    trace = Trace().step(0, 0, STEP)
    trace.kernel("first", 1_000 * US, 1_000 * US, launch_at=10 * US)
    trace.launch(RECORD, 20 * US, name="cudaEventRecord")
    trace.kernel("second", 2_000 * US, 3_000 * US, launch_at=30 * US)
    trace.launch(WAIT, 8_000 * US, name="cudaStreamWaitEvent")
    trace.kernel("lookup", 8_020 * US, 100 * US, stream=25, launch_at=8_010 * US)
    return _add_wait(trace, "Stream Wait Event", WAIT, 25, 7, RECORD) if has_names else trace


def test_a_stream_waits_for_the_work_before_the_event_that_the_trace_names() -> None:
    assert _waits(graph_of(table_set({0: _lookup_after_events(has_names=True)}))) == [("first", "lookup")]


def test_without_names_a_wait_that_never_decided_is_not_inferred() -> None:
    assert _waits(graph_of(table_set({0: _lookup_after_events(has_names=False)}))) == []


@pytest.mark.parametrize("has_names", [True, False])
def test_a_coincidence_counts_only_if_the_trace_names_no_waits(has_names: bool) -> None:
    trace = _lookup_after_events(has_names=has_names)
    trace.kernel("long", 9_000 * US, 4_000 * US, launch_at=8_900 * US)
    trace.kernel("unrelated", 13_002 * US, 100 * US, stream=30, launch_at=8_950 * US)
    assert (("long", "unrelated") in _waits(graph_of(table_set({0: trace})))) is not has_names


@pytest.mark.parametrize("has_names", [True, False])
def test_an_event_sync_waits_for_the_named_work_although_other_work_ends_with_the_call(has_names: bool) -> None:
    trace = Trace().step(0, 0, STEP)
    trace.kernel("marked", 1_000 * US, 3_000 * US, stream=25, launch_at=10 * US)
    trace.launch(RECORD, 20 * US, name="cudaEventRecord")
    trace.kernel("other", 1_000 * US, 3_001 * US, launch_at=30 * US)
    trace.launch(SYNC, 100 * US, 3_905 * US, name="cudaEventSynchronize")
    if has_names:
        _add_wait(trace, "Event Sync", SYNC, -1, 25, RECORD)
    trace.kernel("later", 4_100 * US, 100 * US, launch_at=4_050 * US)
    assert _awaited_by_host(graph_of(table_set({0: trace}))) == ["marked" if has_names else "other"]


@pytest.mark.parametrize("has_names", [True, False])
def test_a_stream_sync_waits_for_the_named_stream_instead_of_that_of_the_last_launch(has_names: bool) -> None:
    trace = Trace().step(0, 0, STEP)
    trace.kernel("marked", 1_000 * US, 3_000 * US, stream=25, launch_at=10 * US)
    trace.kernel("other", 1_000 * US, 3_001 * US, launch_at=30 * US)
    trace.launch(SYNC, 100 * US, 3_905 * US, name="cudaStreamSynchronize")
    if has_names:
        _add_wait(trace, "Stream Sync", SYNC, 25)
    trace.kernel("later", 4_100 * US, 100 * US, launch_at=4_050 * US)
    assert _awaited_by_host(graph_of(table_set({0: trace}))) == ["marked" if has_names else "other"]


def test_a_wait_for_an_event_recorded_before_the_trace_began_is_inferred() -> None:
    trace = _lookup_after_events(has_names=False)
    trace.kernel("long", 9_000 * US, 4_000 * US, launch_at=8_900 * US)
    trace.launch(9_010, 8_940 * US, name="cudaStreamWaitEvent")
    trace.kernel("waiting", 13_002 * US, 100 * US, stream=30, launch_at=8_950 * US)
    _add_wait(trace, "Stream Wait Event", 9_010, 30)
    assert ("long", "waiting") in _waits(graph_of(table_set({0: trace})))
