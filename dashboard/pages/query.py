"""What else would you like to know? SQL over every table of every rank, read-only."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.components.download import table
from usp_prof.tables import catalogue

TITLE = "Query"
PATH = "query"
EXAMPLE = """SELECT rank, axis, op, count(*) AS parts, sum(dur_ns) / 1e6 AS ms
FROM collectives GROUP BY ALL ORDER BY ms DESC"""
MOST_LETTERS = 20_000
MOST_POINTS = 5000
KINDS = ("none", "bars", "line", "points")


def draw() -> None:
    """Draw the page."""
    view = state.current()
    text = st.text_area("SQL (DuckDB)", st.query_params.get("sql", EXAMPLE), height=140, max_chars=MOST_LETTERS)
    state.keep("sql", text if text != EXAMPLE else None)
    run = data.open_numbered(view.run)
    if text.strip():
        frame = run.query(text).df()
        table(frame, "query")
        _chart(frame)
    with st.expander("Tables and columns"):
        for schema in catalogue.SCHEMAS:
            st.markdown(f"**{schema.name}**: {schema.doc}")
            st.dataframe(
                [{"column": c.name, "type": str(c.kind), "unit": c.unit, "meaning": c.doc} for c in schema.columns],
                hide_index=True,
            )


def _chart(frame: pd.DataFrame) -> None:
    """Draw one column over another, as the reader chooses."""
    numbers = [str(name) for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    if not numbers or not len(frame):
        return
    left, middle, right = st.columns(3)
    kind = left.segmented_control("Chart", list(KINDS), default=state.word("chart", KINDS)) or KINDS[0]
    state.keep("chart", kind if kind != KINDS[0] else None)
    if kind == KINDS[0]:
        return
    names = [str(name) for name in frame.columns]
    across = middle.selectbox("over", names)
    up = right.selectbox("of", numbers, len(numbers) - 1)
    plain = frame[[across, up]].head(MOST_POINTS).set_axis(["over", "of"], axis="columns")
    draws = {"bars": st.bar_chart, "line": st.line_chart, "points": st.scatter_chart}
    draws[kind](plain, x="over", y="of", x_label=across, y_label=up)
