"""Compute after a communication waits for it, even if a late launch hid the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.longest_path import replay

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Graph

US = 1_000


def run(*, beside: bool, early_ns: int = 0) -> Trace:
    """Make steps with six pairs of a collective and a kernel; the host is late before the last kernel.

    The kernels wait for the collective before them, or run `beside` it. With rounded timestamps they seem to start
    `early_ns` before its end.
    """
    trace = Trace(0, 1).group("0", [0], "tp")
    for step in range(3):
        at = step * 10_000 * US
        trace.step(step, at, 10_000 * US)
        for pair in range(6):
            begin, launch = at + (1 + pair) * 1_000 * US, at + (10 + pair * 20) * US
            late = pair == 5
            trace.collective("all_reduce", begin, 500 * US, group="0", sequence=6 * step + pair, launch_at=launch)
            follows = begin + (100 if beside else 500) * US - early_ns
            kernel_at = begin + 900 * US if late else follows
            trace.kernel("gemm", kernel_at, 50 * US, launch_at=kernel_at - 10 * US if late else launch + 10 * US)
    return trace


def late_pairs(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the last collective of each step, and the late kernel after it."""
    rows = [np.flatnonzero(graph.nodes.kind == kind) for kind in (NodeKind.COMMUNICATION, NodeKind.COMPUTE)]
    talks, kernels = (node_rows[np.argsort(graph.nodes.start[node_rows])][5::6] for node_rows in rows)
    return talks, kernels


def held(graph: Graph) -> list[bool]:
    """Return whether each late kernel waits for its collective."""
    edges = graph.edges
    waits = edges.take(edges.kind == EdgeKind.WAIT)
    waiting_pairs = set(zip(waits.source.tolist(), waits.target.tolist(), strict=True))
    return [pair in waiting_pairs for pair in zip(*(rows.tolist() for rows in late_pairs(graph)), strict=True)]


@pytest.mark.parametrize("early_ns", [0, 50, 999])
def test_a_hidden_wait_is_inferred_from_others_of_its_kind(early_ns: int) -> None:
    graph = graph_of(table_set({0: run(beside=False, early_ns=early_ns)}))
    assert held(graph) == [True] * 3
    assert np.array_equal(replay(graph).start, graph.nodes.start)


def test_compute_that_overlaps_communication_does_not_wait() -> None:
    assert held(graph_of(table_set({0: run(beside=True)}))) == [False] * 3
