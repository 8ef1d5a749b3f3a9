"""What else would you like to know? SQL over every table of every rank, read-only."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.components.download import table
from usp_prof.tables import catalogue

TITLE = "Query"
PATH = "query"
EXAMPLE = """SELECT rank, axis, op, count(*) AS parts, sum(dur_ns) / 1e6 AS ms
FROM collectives GROUP BY ALL ORDER BY ms DESC"""
MOST_LETTERS = 20_000


def draw() -> None:
    """Draw the page."""
    view = state.current()
    text = st.text_area("SQL (DuckDB)", st.query_params.get("sql", EXAMPLE), height=140, max_chars=MOST_LETTERS)
    state.keep("sql", text if text != EXAMPLE else None)
    run = data.open_numbered(view.run)
    if text.strip():
        table(run.query(text).df(), "query")
    with st.expander("Tables and columns"):
        for schema in catalogue.SCHEMAS:
            st.markdown(f"**{schema.name}**: {schema.doc}")
            st.dataframe(
                [{"column": c.name, "type": str(c.kind), "unit": c.unit, "meaning": c.doc} for c in schema.columns],
                hide_index=True,
            )
