from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.gloo_transfers import with_asked_posts
from usp_prof.replay.graph import NEVER, EdgeKind, Edges, Graph, NodeKind, Nodes
from usp_prof.replay.host_gaps import think_times
from usp_prof.replay.longest_path import replay
from usp_prof.whatif.predict import predict

MS = 1_000_000


def _graph(wait_ns: int) -> Graph:
    """Rank 0 sends at once; rank 1 posts its receive, computes for 10 ms, waits at `wait_ns`, and computes on."""
    compute, talk = int(NodeKind.COMPUTE), int(NodeKind.COMMUNICATION)
    start = np.array([0, MS, 0, MS, wait_ns + 50_000, MS])
    end = np.array([MS, 2 * MS, MS, 11 * MS, 20 * MS, wait_ns])
    kind = np.array([compute, talk, compute, compute, compute, talk])
    call = np.where(kind == talk, 0, -1)
    zeros = np.zeros(6, np.int64)
    nodes = Nodes(
        np.array([0, 0, 1, 1, 1, 1]), np.array([0, 1, 2, 2, 2, 3]), kind, start, end - start, zeros, zeros, zeros, call
    )
    edges = Edges(
        np.array([0, 5, 2]),
        np.array([True, True, True]),
        np.array([1, 4, 5]),
        np.array([0, 50_000, 0]),
        np.array([int(EdgeKind.ISSUE), int(EdgeKind.WAIT), int(EdgeKind.ISSUE)]),
    )
    order = np.argsort(edges.target, kind="stable")
    earliest = np.array([0, NEVER, 0, NEVER, NEVER, NEVER])
    tied = kind == talk
    transfer = np.where(tied, end - MS, 0)
    return Graph(nodes, zeros, earliest, edges.take(order), end - start, transfer, tied, ("cp",), ("op",))


def _halved(graph: Graph) -> int:
    """Return the end of the run if rank 1's long compute takes half its time."""
    duration = graph.duration.copy()
    duration[3] //= 2
    return int(replay(graph.with_changes(duration=duration)).end.max())


def test_a_receive_that_was_posted_late_is_not_network_time() -> None:
    before = _graph(11 * MS + 20_000)
    graph = with_asked_posts(before)
    assert graph.transfer[[1, 5]].tolist() == [MS, MS], "as long as the send took"
    assert EdgeKind.WAIT not in graph.edges.kind
    np.testing.assert_array_equal(replay(graph).start, before.nodes.start)
    np.testing.assert_array_equal(replay(graph).end, graph.nodes.end)
    assert _halved(before) == 20 * MS, "the wait would keep it"
    assert _halved(graph) == 15 * MS


def test_a_receive_that_was_waited_for_is_network_time() -> None:
    before = _graph(15 * MS)
    assert with_asked_posts(before) is before
    assert _halved(before) == 20 * MS


def _pair(send_end: int) -> Graph:
    """As before, posted at 15 ms, but rank 1 first waits for its own send, which ends at `send_end`."""
    before = _graph(15 * MS)
    nodes = before.nodes
    more = [1, 4, int(NodeKind.COMMUNICATION), MS, send_end - MS, 0, 0, 0, -1]
    columns = (nodes.rank, nodes.lane, nodes.kind, nodes.start, nodes.duration, nodes.step, nodes.axis, nodes.name)
    longer = [np.append(column, value) for column, value in zip((*columns, nodes.call), more, strict=True)]
    return Graph(
        Nodes(*longer),
        np.append(before.gap, 0),
        np.append(before.earliest, MS),
        before.edges,
        np.append(before.duration, send_end - MS),
        np.append(before.transfer, 0),
        np.append(before.tied, True),
        before.axes,
        before.names,
    )


def test_a_part_that_ends_right_after_another_waited_for_it() -> None:
    graph = with_asked_posts(_pair(15 * MS - 50_000))
    assert graph.transfer[5] < 2 * MS, "the receive was there long before"
    wait = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    assert wait.source.tolist() == [6], "the send was waited for"
    assert wait.lag.tolist() == [100_000]


def test_a_part_that_seems_to_end_before_its_peer_starts_is_still_connected() -> None:
    before = _graph(15 * MS)
    late = before.nodes.start.copy()
    late[1] = 15 * MS + 500_000  # the other side's range starts half a millisecond after this one ends
    nodes = replace(before.nodes, start=late)
    transfer = np.where(before.nodes.call == 0, nodes.end - late[1], 0)
    graph = with_asked_posts(
        Graph(
            nodes, before.gap, before.earliest, before.edges, before.duration, transfer, transfer > 0,
            before.axes, before.names,
        )
    )  # fmt: skip
    assert graph.tied[5]
    assert graph.transfer[5] == 0
    assert graph.nodes.end[5] == late[1]


def test_copies_of_a_gloo_thread_are_part_of_its_transfer() -> None:
    """A rank that unpacks within the range waits no longer than the other once its gather takes no time."""
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2, device="cpu").group("dp", [0, 1]).step(0, 0, 40 * MS).op("aten::mm", 0, 5 * MS)
        trace.gloo("all_gather", 5 * MS, 30 * MS, thread=200, posted_at=4 * MS, group="dp", sequence=1)
        trace.op("aten::copy_", 34 * MS, MS // 2, thread=200).op("aten::mm", 35 * MS, 5 * MS)
        traces[rank] = trace
    tables = table_set(traces)
    graph = graph_of(tables)
    assert (graph.nodes.kind == NodeKind.COMPUTE).sum() == 4
    faster = predict(tables, [Edit("comm_faster", "30")])
    assert faster.before_ns == 40 * MS
    assert faster.after_ns == 11 * MS


@pytest.mark.parametrize("threads", [(200, 200), (200, 201)])
def test_a_late_first_post_delays_the_following_ones_on_any_thread(threads: tuple[int, int]) -> None:
    """A loop over gradients waits for each all-reduce before it posts the next; gloo's threads take turns at random."""
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2, device="cpu").group("dp", [0, 1], "mesh_dp")
        for step in range(3):
            at = 100 * MS * step
            trace.step(step, at, 100 * MS).op("aten::mm", at, 10 * MS)
            posted = at + (60 if rank else 11) * MS
            for number, thread in enumerate(threads):
                ends = at + (70 + 10 * number) * MS
                trace.gloo(
                    "all_reduce", posted + MS // 10, ends - posted - MS // 10, thread=thread, posted_at=posted,
                    group="dp", sequence=2 * step + number,
                )  # fmt: skip
                posted = ends + MS // 10
            trace.op("aten::mm", at + 81 * MS, 10 * MS)
        traces[rank] = trace
    repaired = predict(table_set(traces), [Edit("host_as_peers", "1")])
    assert repaired.gain_fraction == pytest.approx(0.49, abs=0.01)


@pytest.mark.parametrize("closed_late_ms", [0, 2])
def test_compute_waits_for_communication_whose_range_is_closed_late(closed_late_ms: int) -> None:
    """On a busy host, the thread of gloo may close a range after the waiting thread has continued."""
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2, device="cpu").group("dp", [0, 1], "mesh_dp")
        for step in range(4):
            at = 100 * MS * step
            computes = (60 if rank else 10) * MS
            trace.step(step, at, 100 * MS).op("aten::mm", at, computes)
            ends = at + 70 * MS + (closed_late_ms * MS if (rank, step) == (0, 1) else 0)
            posted = at + computes + MS // 10
            trace.gloo("all_reduce", posted, ends - posted, posted_at=posted, group="dp", sequence=step)
            trace.op("aten::add", at + 70 * MS + MS // 20, 29 * MS)
        traces[rank] = trace
    repaired = predict(table_set(traces), [Edit("rank_as_peers", "1")])
    assert repaired.gain_fraction == pytest.approx(0.5, abs=0.01)


def test_a_pause_that_ends_shortly_before_a_communication_stays_a_pause() -> None:
    """No rank waits at this place in any step, so the end of the all-reduce is a coincidence."""
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2, device="cpu").group("dp", [0, 1], "mesh_dp")
        for step in range(4):
            at = 100 * MS * step
            pause = 28 * MS if (rank, step) == (0, 1) else 0
            trace.step(step, at, 100 * MS).op("aten::mm", at, 10 * MS)
            trace.gloo("all_reduce", at + 10 * MS, 60 * MS, posted_at=at + 10 * MS, group="dp", sequence=step)
            trace.op("aten::mul", at + 11 * MS, 29 * MS).op("aten::sub", at + 40 * MS + pause, 10 * MS)
            trace.op("aten::add", at + 80 * MS, 19 * MS)
        traces[rank] = trace
    graph = graph_of(table_set(traces))
    is_sub = np.array([graph.names[name] == "aten::sub" for name in graph.nodes.name])
    assert think_times(graph)[is_sub].max() == 28 * MS
