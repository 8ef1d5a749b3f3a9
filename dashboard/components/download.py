"""How is a table shown? As Streamlit's grid, with the whole of it to download."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 5000


def table(frame: pd.DataFrame, name: str, *, shown: pd.DataFrame | None = None) -> None:
    """Show a table (`shown` where it is set for reading; its first rows where it is long) and offer it as CSV."""
    st.dataframe((frame if shown is None else shown).head(MOST_ROWS), hide_index=True, width="stretch")
    note = f"{len(frame):,} rows" if len(frame) <= MOST_ROWS else f"the first {MOST_ROWS:,} of {len(frame):,} rows"
    left, right = st.columns([5, 1])
    left.caption(note)
    right.download_button("CSV", frame.to_csv(index=False).encode(), f"{name}.csv", "text/csv", key=f"csv-{name}")
