"""Which event of its trace is each node of the graph?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Graph, Ints


def events_of(graph: Graph) -> Ints:
    """Give each node's event number in its own rank's trace; -1 for what no trace holds."""
    event = graph.nodes.event
    return np.full(len(graph.nodes), -1, np.int64) if event is None else event


def rows_of(events: Ints, wanted: Ints) -> Ints:
    """Give for each wanted event its row in a table of events; -1 where it is not there."""
    if not len(events):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(events, kind="stable")
    place = np.minimum(np.searchsorted(events[order], wanted), len(order) - 1)
    known = (wanted >= 0) & (events[order][place] == wanted)
    return np.where(known, order[place], -1)
