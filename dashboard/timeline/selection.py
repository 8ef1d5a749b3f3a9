"""What ran in a selected range? The slices of the rows shown, by name: how often, on how many ranks, how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dashboard.timeline.rows import CATEGORIES
from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, TableColumn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dashboard.timeline.store import TimelineStore

MOST_ROWS = 1000
COLUMNS = (
    TableColumn("name"),
    TableColumn("kind"),
    TableColumn("calls", Unit.COUNT),
    TableColumn("ranks", Unit.COUNT),
    TableColumn("time in range", Unit.NS),
    TableColumn("longest", Unit.NS),
)


def contents(
    store: TimelineStore, ranks: Iterable[int], kinds: Collection[str], start_ns: int, end_ns: int
) -> DataTable:
    """Sum up what of each name lies in a range, on the rows of some kinds; longest first."""
    parts = []
    for rank in ranks:
        rows = [(rank, i) for i, row in enumerate(store.ranks[rank].rows) if row.kind in kinds]
        view = store.view(rows, start_ns, end_ns, 0.0)
        end = np.minimum(view.start + view.rest["dur"].astype(np.int64), end_ns)
        inside = np.maximum(end - np.maximum(view.start, start_ns), 0)
        columns = {"name": view.names, "kind": view.rest["category"], "inside": inside, "dur": view.rest["dur"]}
        parts.append(pd.DataFrame(columns).assign(rank=rank))
    whole = pd.concat(parts) if parts else pd.DataFrame(columns=["name", "kind", "inside", "dur", "rank"])
    grouped = whole.groupby(["name", "kind"], as_index=False).agg(
        calls=("inside", "size"), ranks=("rank", "nunique"), total=("inside", "sum"), longest=("dur", "max")
    )
    grouped = grouped.sort_values(["total", "name"], ascending=[False, True]).head(MOST_ROWS)
    summed = zip(
        (store.names[number] for number in grouped["name"]),
        (CATEGORIES[number] for number in grouped["kind"]),
        *(grouped[column].tolist() for column in ("calls", "ranks", "total", "longest")),
        strict=True,
    )
    return DataTable("", COLUMNS, tuple(summed))
