"""Which event of its trace is each node of the graph?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import places_of

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Graph, Ints


def events_of(graph: Graph) -> Ints:
    """Give each node's event number in its own rank's trace; -1 for what no trace holds."""
    event = graph.nodes.event
    return np.full(len(graph.nodes), -1, np.int64) if event is None else event


def rows_of(events: Ints, wanted: Ints) -> Ints:
    """Give for each wanted event its row in a table of events; -1 where it is not there."""
    return np.where(wanted >= 0, places_of(events, wanted), -1)
