"""Which event of its trace is each node of the graph?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Ints


def events_of(graph: Graph) -> Ints:
    """Give each node's event number in its own rank's trace; -1 for what no trace holds."""
    event = graph.nodes.event
    return np.full(len(graph.nodes), -1, np.int64) if event is None else event
