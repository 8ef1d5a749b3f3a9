"""The frame around each page: the choice of run, ranks and steps beside it, the list of pages above it."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from . import data, report, state
from .engine import UspProfError
from .pages import PAGES
from .report import kept
from .work import wait

HERE = Path(__file__).resolve().parent


def _style() -> None:
    st.html(
        "<style>[data-testid='stMainBlockContainer']{padding:4.2rem 2rem 2rem;max-width:none}"
        "section[data-testid='stSidebar']:is([aria-expanded='true'],[data-collapsed='false'])"
        "{width:232px!important;min-width:232px!important}"
        "[data-testid='stMetricValue']{font-size:1.5rem}[data-testid='stMetric']{margin-bottom:-0.8rem}</style>"
    )


def _sidebar() -> None:
    with st.sidebar:
        st.markdown("### usp-prof")
        if data.run_count() > 1:
            names = [Path(path).name or path for path in data.paths()]
            before = state.number("run", 0, len(names) - 1) or 0
            chosen = st.selectbox("Run", range(len(names)), before, format_func=lambda i: names[i])
            state.keep("run", chosen or None)
        run = data.open_numbered(state.number("run", 0, data.run_count() - 1) or 0)
        ranks = st.text_input("Ranks", st.query_params.get("ranks", ""), placeholder="all, or 0,2,4-7", max_chars=200)
        state.keep("ranks", state.format_ranks(state.parse_ranks(ranks, run.tables.ranks)))
        steps = st.text_input("Steps", st.query_params.get("steps", ""), placeholder="all, or 3-5", max_chars=20)
        state.keep("steps", steps if steps.replace("-", "").isdigit() else None)
        _report()
        count = len(run.tables.ranks)
        st.caption(f"{count} {'rank' if count == 1 else 'ranks'} read from `{Path(str(run.path)).name}`")


def _report() -> None:
    """Offer all of this as one page of HTML, made when it is asked for."""
    if st.button("HTML report", help="every page's tables and charts in one file that needs no server"):
        view = state.current()
        page = wait(report.ask(view.run, view.selection, kept(view.run)))
        name = f"{Path(str(data.open_numbered(view.run).path)).name}.html"
        st.download_button("Download it", page.encode(), name, "text/html")


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config("usp-prof", page_icon=str(HERE / "icon.png"), layout="wide")
    _style()
    if not data.run_count():
        st.error("No run was named.")
        st.code("usp-prof dashboard traces/my-run")
        st.stop()
    pages = [st.Page(page.draw, title=page.title, url_path=page.path, default=i == 0) for i, page in enumerate(PAGES)]
    st.session_state["pages"] = {page.path: made for page, made in zip(PAGES, pages, strict=True)}
    chosen = st.navigation(pages, position="top")
    state.carry(chosen.title)
    try:
        wait(data.ask_run(state.number("run", 0, data.run_count() - 1) or 0))
        _sidebar()
        chosen.run()
    except UspProfError as error:
        st.error(error.message)
        st.info(error.hint or "usp-prof info PATH says what is there")
    finally:
        state.remember(chosen.title)
