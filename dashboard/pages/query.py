"""Query page: read-only SQL over every table of every rank."""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import streamlit as st

from usp_prof import UspProfError
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, Section, TableColumn, Text
from usp_prof.report.format import quantity
from usp_prof.tables.catalog import SCHEMAS as TABLE_SCHEMAS
from usp_prof.tables.sql_cells import Cells

from .. import data, state
from ..components.blocks import folded, theme, verdict
from ..components.choices import choose_word, usual_first
from ..components.download import distinct, table
from ..report import offer
from ..state import Page, Room

EXAMPLE = """SELECT rank, axis, op, count(*) AS parts, sum(dur_ns) / 1e6 AS ms
FROM collectives GROUP BY ALL ORDER BY ms DESC"""
OWN = "one of your own"
QUESTIONS = {
    "Time in collectives by rank, axis and kind": EXAMPLE,
    "Kernels and ops with most time": """SELECT name, count(*) AS calls, sum(dur_ns) / 1e6 AS ms
FROM activities GROUP BY name ORDER BY ms DESC LIMIT 50""",
    "Calls that wait longest, and for whom": """SELECT axis, op, late_rank, (last_ns - first_ns) / 1e6 AS wait_ms
FROM calls ORDER BY wait_ms DESC LIMIT 50""",
    "Events of each rank": "SELECT rank, count(*) AS events FROM events GROUP BY rank ORDER BY rank",
}
"""Built-in questions."""
MOST_LETTERS = 20_000
MOST_ROWS = 200_000
MOST_BYTES = 64 << 20
MOST_SECONDS = 30.0
"""Time limit of a query."""
MOST_POINTS = 5000
SCHEMA_PX = 320
LISTED = 200
"""Rows of an answer that a report lists."""
MOST_BARS = 30
"""Of named bars."""
LEGEND_COLUMNS = 4
"""A legend in one line was cut in narrow windows."""
AXIS = "axis"
"""Column whose values have colors of their own on all pages."""
NO_CHART, BARS = "none", "bars"
KINDS = (NO_CHART, BARS, "line", "points")
MOST_NAMED_COLUMNS = 6
LONGEST_VALUE = 60
"""Number of columns, and of characters per value, in the sentence."""


def draw() -> None:
    """Draw the page."""
    view = state.current()
    heading = st.container()
    name, text = _question()
    if text.strip():
        try:
            frame = ask(view.run, text[:MOST_LETTERS])
        except UspProfError as error:
            _wrong(text, error)
        else:
            with heading:
                verdict(sentence_of_answer(name, frame))
            if len(frame) == MOST_ROWS:
                st.caption(f"Limited to {MOST_ROWS:,} rows; `usp-prof query` writes all rows.")
            _answer(frame, BARS if name in QUESTIONS else NO_CHART)
            offer(QUERY, view.run, text, lambda: (answered(text, frame),))
    folded("tables", "Tables and columns", _tables)


def sentence_of_answer(question: str, frame: pd.DataFrame) -> str:
    """Return the answer if it is one row, or else the number of rows."""
    subject = "Your question" if question == OWN else question
    if not len(frame):
        return f"{subject}: no row answers it."
    if len(frame) > 1:
        return f"{subject}: {len(frame):,} rows."
    cells = list(zip(frame.columns, frame.iloc[0], strict=True))[:MOST_NAMED_COLUMNS]
    return f"{subject}: {', '.join(f'{head} {_short(value)}' for head, value in cells)}."


def _short(value: object) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return f"{float(value):,.4g}"
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _tables() -> None:
    """List all tables with their columns."""
    for schema in TABLE_SCHEMAS:
        st.markdown(f"**{schema.name}**: {schema.doc}")
        st.dataframe(
            [{"column": c.name, "type": str(c.kind), "unit": c.unit, "meaning": c.doc} for c in schema.columns],
            hide_index=True,
        )


def _wrong(text: str, error: UspProfError) -> None:
    """Show the error next to the tables and columns."""
    left, right = st.columns([3, 2], gap="medium")
    left.error(state.plain(error.message))
    where = "The available columns are on the right; their meanings are below."
    left.info(where if not error.hint or "usp-prof tables" in error.hint else state.plain(error.hint))
    schemas = [schema for schema in TABLE_SCHEMAS if re.search(rf"\b{schema.name}\b", text)] or TABLE_SCHEMAS
    rows = [
        {"table": table_schema.name, "column": c.name, "unit": c.unit}
        for table_schema in schemas
        for c in table_schema.columns
    ]
    right.dataframe(rows, hide_index=True, height=SCHEMA_PX, key="schema-beside")


def _question() -> tuple[str, str]:
    """Ask for SQL text or a built-in question; return its name and text."""
    asked_text = st.query_params.get("sql", EXAMPLE)
    names = (OWN, *QUESTIONS)
    asked_name = next((name for name, text in QUESTIONS.items() if text == asked_text), OWN)
    chosen = st.selectbox("Question", names, names.index(asked_name), key=f"question-{asked_name}")
    if chosen not in {OWN, asked_name}:
        asked_text = QUESTIONS[chosen]
        state.keep("sql", asked_text if asked_text != EXAMPLE else None)
        st.rerun()
    with st.form("query", border=False):
        text: str = st.text_area(
            "SQL (DuckDB), read-only: SELECT over every table of every rank", asked_text, height=85,
            max_chars=MOST_LETTERS, key=f"sql-{hash(asked_text)}",
        )  # fmt: skip
        st.form_submit_button("Run (Ctrl-Enter)", type="primary")
    state.keep("sql", text if text != EXAMPLE else None)
    if text != asked_text:
        st.rerun()  # restart with the address' text, so that the browser's back button works
    return asked_name, text


def ask(index: int, text: str) -> pd.DataFrame:
    """Run a query with limits on rows, bytes and time; the answers to the page's own questions are memoized."""
    run = data.open_numbered(index)

    def answered_now() -> pa.Table:
        return run.answer(text, rows=MOST_ROWS, seconds=MOST_SECONDS, cells=Cells.PLAIN)

    with st.spinner("running", show_time=True):
        is_own = text in QUESTIONS.values()
        answer = run.tables.memo(("query page", text), answered_now) if is_own else answered_now()
    if answer.nbytes > MOST_BYTES:
        raise UsageError(
            f"the answer is {quantity(answer.nbytes, Unit.BYTES)}, more than this page can show",
            hint="ask for fewer columns or rows, or write it to a file with usp-prof query",
        )
    return as_frame(answer)


def as_frame(answer: pa.Table) -> pd.DataFrame:
    """Return a result with distinct column names and plain numbers."""
    columns = [_plain(column) for column in answer.columns]
    heads = distinct([str(name) for name in answer.column_names])
    frame: pd.DataFrame = pa.table(columns, names=heads).to_pandas()
    return frame


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert decimals, DuckDB's type for sums, to numbers."""
    if not pa.types.is_decimal(column.type):
        return column
    try:
        return column.cast(pa.int64() if column.type.scale == 0 else pa.float64())
    except pa.ArrowInvalid:
        return column.cast(pa.float64())


def answered(text: str, frame: pd.DataFrame) -> Section:
    """Build a section with a query and its first rows."""
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


def _answer(frame: pd.DataFrame, usual: str) -> None:
    """Show the rows, and a chart of them next to them."""
    countable = [str(name) for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    if not countable or not len(frame):
        table(frame, "query")
        return
    offered = usual_first(usual, KINDS)
    is_table = state.word("chart", offered) == NO_CHART
    left, right = st.columns([3, 1] if is_table else 2, gap="medium")
    with left:
        table(frame, "query")
    kind_column, *axis_columns = right.columns(1 if is_table else 3)
    kind = choose_word("Chart", "chart", offered, place=kind_column)
    if kind == NO_CHART:
        return
    across = choose_word("Horizontal", "x", tuple(str(name) for name in frame.columns), place=axis_columns[0])
    up = choose_word("Vertical", "y", usual_first(countable[-1], tuple(countable)), place=axis_columns[1])
    with right:
        _chart(frame, countable, kind, across, up)


def _chart(frame: pd.DataFrame, countable: list[str], kind: str, across: str, up: str) -> None:
    """Draw one column over another; bars at one place are stacked by the first other column of names."""
    shown = frame.head(MOST_POINTS)
    plain = pd.DataFrame({"over": _as_axis(shown[across]), "of": shown[up]})
    if kind != BARS:
        draws = {"line": st.line_chart, "points": st.scatter_chart}
        draws[kind](plain, x="over", y="of", x_label=across, y_label=up)
        return
    is_named = not pd.api.types.is_numeric_dtype(plain["over"])
    other = next((str(name) for name in frame.columns if name not in {*countable, across}), None)
    parts = other if other and plain["over"].duplicated().any() else None
    if parts:
        plain["part"] = _as_axis(shown[parts])
        plain = plain.groupby(["over", "part"], sort=False, as_index=False).sum()
    if is_named:
        plain = plain[plain["over"].isin(plain["over"].unique()[:MOST_BARS])]
    st.vega_lite_chart(plain, _bars(plain, across, up, parts, is_named=is_named))


def _bars(plain: pd.DataFrame, across: str, up: str, parts: str | None, *, is_named: bool) -> dict[str, Any]:
    """Return Vega-Lite bars: names are listed in the order of the answer, numbers are sorted."""
    place = {"field": "over", "type": "nominal", "title": across, "sort": None if is_named else "ascending"}
    height = {"field": "of", "type": "quantitative", "title": up, "aggregate": "sum"}
    encoding: dict[str, Any] = {"y": place, "x": height} if is_named else {"x": place, "y": height}
    if parts:
        names = list(dict.fromkeys(plain["part"]))
        colors = {"domain": names, "range": [theme().color(f"comm:{name}") for name in names]} if parts == AXIS else {}
        legend = {"orient": "bottom", "columns": LEGEND_COLUMNS, "title": None}
        encoding["color"] = {"field": "part", "type": "nominal", "sort": None, "scale": colors, "legend": legend}
    return {"mark": "bar", "encoding": encoding}


def _as_axis(values: pd.Series) -> pd.Series:
    return values.astype(str) if values.dtype == "object" else values


QUERY = Page("Query", "query", draw, Room.ASIDE)
