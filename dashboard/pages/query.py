"""What else would you like to know? SQL over every table of every rank, read-only."""

from __future__ import annotations

import math
import numbers

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.components.answer import offer
from dashboard.components.download import table
from usp_prof.report.document import DataTable, Section, TableColumn, Text
from usp_prof.tables import catalogue

TITLE = "Query"
PATH = "query"
EXAMPLE = """SELECT rank, axis, op, count(*) AS parts, sum(dur_ns) / 1e6 AS ms
FROM collectives GROUP BY ALL ORDER BY ms DESC"""
MOST_LETTERS = 20_000
MOST_POINTS = 5000
LISTED = 200
"""Rows of an answer that a report lists."""
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
        offer(PATH, TITLE, view.run, text, lambda: (answered(text, frame),))
    with st.expander("Tables and columns"):
        for schema in catalogue.SCHEMAS:
            st.markdown(f"**{schema.name}**: {schema.doc}")
            st.dataframe(
                [{"column": c.name, "type": str(c.kind), "unit": c.unit, "meaning": c.doc} for c in schema.columns],
                hide_index=True,
            )


def answered(text: str, frame: pd.DataFrame) -> Section:
    """Set out a question and the first rows of its answer."""
    rows = tuple(tuple(_cell(value) for value in row) for row in frame.head(LISTED).itertuples(index=False, name=None))
    columns = tuple(TableColumn(str(name)) for name in frame.columns)
    return Section(
        "query", "Query", (Text(text, quiet=True), DataTable("", columns, rows, more=max(0, len(frame) - LISTED)))
    )


def _cell(value: object) -> int | float | str | None:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return None if math.isnan(value) else float(value)
    return None if value is None or value is pd.NA or value is pd.NaT else str(value)


def _chart(frame: pd.DataFrame) -> None:
    """Draw one column over another, as the reader chooses."""
    countable = [str(name) for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    if not countable or not len(frame):
        return
    left, middle, right = st.columns(3)
    kind = left.segmented_control("Chart", list(KINDS), default=state.word("chart", KINDS)) or KINDS[0]
    state.keep("chart", kind if kind != KINDS[0] else None)
    if kind == KINDS[0]:
        return
    names = [str(name) for name in frame.columns]
    across = middle.selectbox("over", names)
    up = right.selectbox("of", countable, len(countable) - 1)
    plain = frame[[across, up]].head(MOST_POINTS).set_axis(["over", "of"], axis="columns")
    draws = {"bars": st.bar_chart, "line": st.line_chart, "points": st.scatter_chart}
    draws[kind](plain, x="over", y="of", x_label=across, y_label=up)
