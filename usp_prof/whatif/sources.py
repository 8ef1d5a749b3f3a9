"""Which event of its trace is each node of the graph?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.whatif.rank_nodes import nodes_of

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Ints


def events_of(tables: TableSet) -> Ints:
    """Give each node's event number in its own rank's trace, in the order of the graph's nodes."""
    return tables.memo("whatif events", lambda: np.concatenate([nodes_of(tables, rank).event for rank in tables.ranks]))
