"""Long launches: a host that loses its core within a call submits the work at the end of the call."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind

US = 1_000


@pytest.mark.parametrize(("starts_at_us", "late"), [(2_015, True), (1_950, True), (500, False)])
def test_work_that_starts_after_a_long_call_was_submitted_at_its_end(starts_at_us: int, late: bool) -> None:
    trace = Trace().step(0, 0, 5_000 * US)
    trace.kernel("first", 20 * US, 300 * US, launch_at=10 * US)
    trace.launch(77, 30 * US, 1_970 * US)
    trace.kernel("second", starts_at_us * US, 100 * US, correlation=77)
    graph = graph_of(table_set(trace))
    names, edges = graph.names, graph.edges
    (row,) = (
        row
        for row in range(len(edges.target))
        if edges.kind[row] == EdgeKind.LAUNCH and names[graph.nodes.name[edges.target[row]]] == "second"
    )
    assert edges.at_end[row] == late
    assert graph.gap[edges.target[row]] <= (0 if late else 200 * US)
