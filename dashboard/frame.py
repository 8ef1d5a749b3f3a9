"""The frame around each page: the choice of run, ranks and steps beside it, the list of pages above it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from . import data, report, state
from .components.palette import palette
from .engine import DARK, EVERYTHING, LIGHT, UspProfError, ink_on
from .pages import PAGES
from .report import kept
from .state import Room
from .work import wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlit.navigation.page import StreamlitPage

    from .engine import Document
    from .state import Page

HERE = Path(__file__).resolve().parent


def _style(room: Room) -> None:
    at = f".st-key-room-{room.name.lower()} a"
    colors = DARK if state.is_dark() else LIGHT
    st.html(
        "<style>[data-testid='stMainBlockContainer']{padding:0.5rem 2rem 2rem;max-width:none}"
        "header[data-testid='stHeader']{background:transparent;pointer-events:none;height:2.6rem}"
        "header[data-testid='stHeader'] :is(button,a){pointer-events:auto}"
        "section[data-testid='stSidebar']:is([aria-expanded='true'],[data-collapsed='false'])"
        "{width:232px!important;min-width:232px!important}"
        "[data-testid='stMetric']{margin-bottom:-0.8rem}"
        f"[data-testid='stCaptionContainer']{{opacity:1;color:{colors.muted}}}"  # Streamlit's own is too pale to read
        # A figure is never cut: it is written smaller on a narrow screen, and on two lines before that.
        "[data-testid='stMetricValue']{font-size:clamp(1.05rem,1.7vw,1.5rem)}"
        "[data-testid='stMetric'] :is([data-testid='stMetricValue'],[data-testid='stMetricLabel'],"
        "[data-testid='stMetricLabel']) *{white-space:normal;overflow:visible;text-overflow:clip}"
        "[data-testid='stButtonGroup']>div{flex-wrap:wrap}"
        "[data-testid='stSelectbox'] input{text-overflow:ellipsis}"
        f":is(button[kind^='primary'],button[kind^='primary'] *){{color:{ink_on(colors.accent)}}}"
        "h1.usp-verdict{font-size:1.35rem;font-weight:600;line-height:1.35;padding:0;margin:0;max-width:75rem}"
        "h1.usp-verdict code{font-size:.85em;font-weight:500}"
        f".st-key-now{{position:sticky;top:0;z-index:9;background:{colors.background};padding:.4rem 0}}"
        # A link looks like one wherever it stands, but in the navigation, where nothing is anything else.
        f"a[data-testid='stPageLink-NavLink']:not(.st-key-rooms *,.st-key-pages *) p{{color:{colors.accent};"
        "text-decoration:underline;text-underline-offset:3px}"
        ".st-key-rooms{border-bottom:1px solid rgba(128,128,128,.3)}"
        ".st-key-rooms a p{font-size:1rem;font-weight:600}"
        ".st-key-rooms a:not(:hover){background:transparent}"  # a room is marked by its line, whichever its page
        f"{at}{{border-bottom:2px solid var(--st-primary-color,#0072B2);border-radius:0}}</style>"
    )


# The way through: rooms above, the pages of the room beneath; what a run has nothing for says why.


def _navigation(chosen: Page, made: Mapping[str, StreamlitPage], document: Document | None) -> None:
    """Draw the links to rooms and pages."""
    listed = [page for page in PAGES if not page.part_of]
    lacks = {page.path: page.lacks(document) if document is not None else "" for page in listed}
    path = chosen.part_of or chosen.path
    place = st.container(key=f"at-{path}", gap="xsmall")
    with place, st.container(key="rooms", horizontal=True, gap="medium"):
        for room in Room:
            if room is Room.ASIDE:
                continue
            pages = [page for page in listed if page.room is room]
            first = next((page for page in pages if not lacks[page.path]), pages[0])
            with st.container(key=f"room-{room.name.lower()}", width="content"):
                why = lacks[first.path]
                _link(first, chosen, made, str(room), why)
        palette(made, [(page.path, page.title) for page in listed if not lacks[page.path]], document)
    pages = [page for page in listed if page.room is chosen.room]
    if len(pages) == 1:
        return
    with place, st.container(key="pages", horizontal=True, gap="small"):
        for page in pages:
            why = lacks[page.path]
            _link(page, chosen, made, page.title, why)


def _link(page: Page, chosen: Page, made: Mapping[str, StreamlitPage], label: str, why: str) -> None:
    """Link to a page as it was left; to the page that is shown, as it begins."""
    words = state.link(page.path)
    if page is chosen:
        words = {name: value for name, value in words.items() if name in state.SHARED}
    st.page_link(made[page.path], label=label, disabled=bool(why), help=why or None, query_params=words)


def _sidebar() -> None:
    """Draw the choice of run, ranks and steps; a new choice is written into the address, and the page begins anew.

    The fields then hold what the address says, so that the way back leads out of the choice.
    """
    with st.sidebar:
        st.markdown("### usp-prof")
        if data.run_count() > 1:
            names = [run.name for run in data.runs()]
            before = state.number("run", 0, len(names) - 1) or 0
            chosen = st.selectbox("Run", range(len(names)), before, format_func=lambda i: names[i])
            if chosen != before:
                state.keep("run", chosen or None)
                st.rerun()
        address = st.query_params.to_dict()
        run = data.open_numbered(state.number("run", 0, data.run_count() - 1) or 0)
        asked = st.query_params.get("ranks", "")
        ranks = st.text_input("Ranks", asked, placeholder="all, or 0,2,4-7", max_chars=200)
        chosen_ranks = state.parse_ranks(ranks, run.tables.ranks)
        if ranks != asked or chosen_ranks is None:  # a link is not written anew: that would end the way back at it
            state.keep("ranks", state.format_ranks(chosen_ranks))
        if ranks != asked:
            state.keep("only", None)  # what a link showed of the timeline gives way to a choice
        steps = st.text_input("Steps", st.query_params.get("steps", ""), placeholder="all, or 3-5", max_chars=20)
        state.keep("steps", steps if steps.replace("-", "").isdigit() else None)
        if st.query_params.to_dict() != address:
            st.rerun()
        _report()
        st.page_link(st.session_state["pages"]["query"], label="Query in SQL", query_params=state.link("query"))
        count = len(run.tables.ranks)
        st.caption(f"{count} {'rank' if count == 1 else 'ranks'} read from `{Path(str(run.path)).name}`")


def _report() -> None:
    """Offer all of this as one page of HTML, made when it is asked for."""
    if st.button("HTML report", help="tables and charts of all pages in one file that needs no server"):
        view = state.current()
        page = wait(report.ask(view.run, view.selection, kept(view.run)))
        name = f"{Path(str(data.open_numbered(view.run).path)).name}.html"
        st.download_button("Download", page.encode(), name, "text/html")


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config("usp-prof", page_icon=str(HERE / "icon.png"), layout="wide")
    if not data.run_count():
        _without_run()
        return
    made = {
        page.path: st.Page(page.draw, title=page.title, url_path=page.path, default=i == 0)
        for i, page in enumerate(PAGES)
    }
    st.session_state["pages"] = made
    running = st.navigation(list(made.values()), position="hidden")
    chosen = next(page for page in PAGES if page.title == running.title)
    _style(chosen.room)
    try:
        index = state.number("run", 0, data.run_count() - 1) or 0
        wait(data.ask_run(index))
        _sidebar()  # first: what it changes is in the links
        _navigation(chosen, made, _report_of(index))
        running.run()
        data.ask_drawings(index)  # nobody waits for them
    except UspProfError as error:
        st.error(error.message)
        st.info(error.hint or "usp-prof info PATH shows what is there")
    finally:
        state.remember(chosen.path)


def _without_run() -> None:
    """Draw what needs no run: plans for a model that is typed, sweeps, and the lessons."""
    offered = [page for page in PAGES if not page.needs_run]
    made = {
        page.path: st.Page(page.draw, title=page.title, url_path=page.path, default=place == 0)
        for place, page in enumerate(offered)
    }
    running = st.navigation(list(made.values()), position="hidden")
    _style(Room.PREDICT)
    st.markdown("### usp-prof")
    with st.container(horizontal=True, gap="medium"):
        for page in offered:
            if not page.part_of:
                st.page_link(made[page.path], label=page.title)
    try:
        running.run()
    except UspProfError as error:
        st.error(error.message)
        st.info(error.hint or "choose something different")
    st.caption("No run is open. To open one: usp-prof dashboard traces/my-run")


def _report_of(index: int) -> Document | None:
    """Return the report of the whole run, which says what each page has to show; None where none can be made."""
    try:
        return wait(data.ask_document(index, EVERYTHING))
    except UspProfError:
        return None
