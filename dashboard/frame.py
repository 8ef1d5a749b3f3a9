"""Frame of each page: the sidebar with run, ranks and steps, and the navigation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from usp_prof import UspProfError
from usp_prof.charts.theme import ink_on
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.document import Document

from . import data, report, served_runs, state
from .components.blocks import theme
from .components.palette import palette
from .pages import PAGES
from .report import answers_of_run
from .state import Page, Room
from .work import wait

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage


HERE = Path(__file__).resolve().parent


def _style(room: Room) -> None:
    """Apply the style sheets in one element, with the theme's colors; the current room is underlined."""
    colors = theme()
    variables = (
        f":root{{--usp-muted:{colors.muted};--usp-accent:{colors.accent};--usp-on-accent:{ink_on(colors.accent)};"
        f"--usp-background:{colors.background}}}"
        f".st-key-room-{room.name.lower()} a{{border-bottom:2px solid var(--st-primary-color,#0072B2);border-radius:0}}"
    )
    sheets = ["style.css", *(["timeline.css"] if room is Room.TIMELINE else [])]
    st.html(f"<style>{variables}{''.join((HERE / sheet).read_text(encoding='utf-8') for sheet in sheets)}</style>")


# Navigation: rooms, and the pages of the room below; the tooltip of a gray page says why it is empty.


def _navigation(chosen: Page, page_by_path: Mapping[str, StreamlitPage], document: Document | None) -> None:
    """Draw the links to rooms and pages."""
    main_pages = [page for page in PAGES if not page.part_of]
    lacks = {page.path: page.lacks(document) if document is not None else "" for page in main_pages}
    path = chosen.part_of or chosen.path
    place = st.container(key=f"at-{path}", gap="xsmall")
    with place, st.container(key="rooms", horizontal=True, gap="medium"):
        for room in Room:
            if room is Room.ASIDE:
                continue
            pages = [page for page in main_pages if page.room is room]
            first = next((page for page in pages if not lacks[page.path]), pages[0])
            with st.container(key=f"room-{room.name.lower()}", width="content"):
                why = lacks[first.path]
                _link(first, chosen, page_by_path, str(room), why)
        palette(page_by_path, [(page.path, page.title) for page in main_pages if not lacks[page.path]], document)
    pages = [page for page in main_pages if page.room is chosen.room]
    if len(pages) == 1:
        return
    with place, st.container(key="pages", horizontal=True, gap="small"):
        for page in pages:
            is_parent = page.path == chosen.part_of  # Streamlit marks only the page itself
            with st.container(key="parent-page", width="content") if is_parent else nullcontext():
                _link(page, chosen, page_by_path, page.title, lacks[page.path])


def _link(page: Page, chosen: Page, page_by_path: Mapping[str, StreamlitPage], label: str, why: str) -> None:
    """Link to a page with its last view; the current page's link resets its view."""
    words = state.link(page.path)
    if page is chosen:
        words = {name: value for name, value in words.items() if name in state.SHARED}
    st.page_link(page_by_path[page.path], label=label, disabled=bool(why), help=why or None, query_params=words)


def _sidebar() -> None:
    """Draw the choice of run, ranks and steps; a new choice is written into the address and the page reruns.

    The fields show what the address says, so the browser's back button undoes a choice.
    """
    with st.sidebar:
        st.markdown("### usp-prof")
        index = state.run_index()
        if served_runs.run_count() > 1:
            names = [run.name for run in served_runs.runs()]
            chosen = st.selectbox("Run", range(len(names)), index, format_func=lambda i: names[i])
            if chosen != index:
                state.choose_run(chosen)
                st.rerun()
        address = st.query_params.to_dict()
        run = data.open_numbered(index)
        asked_ranks = st.query_params.get("ranks", "")
        ranks = st.text_input("Ranks", asked_ranks, placeholder="all, or 0,2,4-7", max_chars=200)
        chosen_ranks = state.parse_ranks(ranks, run.tables.ranks)
        if ranks != asked_ranks:  # a link is not rewritten: that would add an entry to the browser's history
            state.keep("ranks", state.format_ranks(chosen_ranks) or ranks)
            state.keep("only", None)  # a choice replaces the ranks that a link to the timeline named
        asked_steps = st.query_params.get("steps", "")
        steps = st.text_input("Steps", asked_steps, placeholder="all, or 3-5", max_chars=20)
        if steps != asked_steps:
            state.keep("steps", steps)
        if st.query_params.to_dict() != address:
            st.rerun()
        _report()
        st.page_link(st.session_state["pages"]["query"], label="Query in SQL", query_params=state.link("query"))
        count = len(run.tables.ranks)
        st.caption(f"{count} {'rank' if count == 1 else 'ranks'} read from `{served_runs.name(index)}`")


def _remarks(index: int) -> None:
    """Warn about a run that changed on disk, and about parts of the selection that it does not have."""
    change = served_runs.change_on_disk(index)
    if change:
        left, right = st.columns([5, 1], vertical_alignment="center")
        left.warning(f"The trace files of this run were {change} on disk. The figures are from before.")
        if right.button("Read again", width="stretch"):
            data.read_again()
            with suppress(KeyError):
                del st.query_params["run"]  # the contents changed, and with them the run's key
            st.rerun()
    for remark in state.unmatched(data.open_numbered(index).tables.ranks, data.steps_of(index)):
        st.warning(state.plain(remark))


def _run(page: StreamlitPage) -> None:
    """Draw a page below the remarks about values of the address that it does not offer."""
    place = st.container(key="ignored")
    state.take_ignored()  # of a page that was not drawn to its end
    page.run()
    for remark in state.take_ignored():
        place.warning(state.plain(remark))


def _explain(error: UspProfError) -> None:
    st.error(error.message)
    st.info(error.hint or "usp-prof info PATH shows what is there")


def _list_runs(places: Iterable[int]) -> None:
    overview = st.session_state["pages"][PAGES[0].path]
    for index in places:
        st.page_link(overview, label=served_runs.name(index), query_params={"run": served_runs.key(index)})


def _report() -> None:
    """Offer the report as one HTML page, which is built on request."""
    if st.button("HTML report", help="tables and charts of all pages in one file that needs no server"):
        view = state.current()
        page = wait(report.ask(view.run, view.selection, answers_of_run(view.run)))
        st.download_button("Download", page.encode(), f"{served_runs.name(view.run)}.html", "text/html")


def _pages(pages: Sequence[Page]) -> dict[str, StreamlitPage]:
    """Return Streamlit's pages by path; the first is the default."""
    return {
        page.path: st.Page(page.draw, title=page.title, url_path=page.path, default=page is pages[0]) for page in pages
    }


def main() -> None:
    """Draw the chosen page."""
    if not served_runs.run_count():
        st.set_page_config("usp-prof", page_icon=str(HERE / "icon.png"), layout="wide")
        _without_run()
        return
    page_by_path = st.session_state["pages"] = _pages(PAGES)
    running = st.navigation(list(page_by_path.values()), position="hidden")
    chosen = next(page for page in PAGES if page.title == running.title)
    # The timeline needs the width: the sidebar is closed there until it is opened.
    sidebar = "collapsed" if chosen.room is Room.TIMELINE else "auto"
    st.set_page_config("usp-prof", page_icon=str(HERE / "icon.png"), layout="wide", initial_sidebar_state=sidebar)
    _style(chosen.room)
    try:
        index = state.run_index()
        try:
            wait(data.ask_run(index))
        except UspProfError as error:
            _explain(error)
            other_runs = [other for other in range(served_runs.run_count()) if other != index]
            if other_runs:
                st.write("Other runs:")
                _list_runs(other_runs)
            return
        _sidebar()  # first: the links include its choices
        _navigation(chosen, page_by_path, _report_of(index))
        _remarks(index)
        _run(running)
        data.ask_drawings(index)  # in the background
    except state.NotServedError as error:
        st.error(state.plain(error.message))
        st.info(error.hint)
        _list_runs(range(served_runs.run_count()))
    except UspProfError as error:
        _explain(error)
    finally:
        state.remember(chosen.path)


def _without_run() -> None:
    """Draw the pages that need no run: plans for a typed model, sweeps, and the lessons."""
    offered = [page for page in PAGES if not page.needs_run]
    page_by_path = _pages(offered)
    running = st.navigation(list(page_by_path.values()), position="hidden")
    _style(Room.PREDICT)
    st.markdown("### usp-prof")
    with st.container(horizontal=True, gap="medium"):
        for page in offered:
            if not page.part_of:
                st.page_link(page_by_path[page.path], label=page.title)
    try:
        _run(running)
    except UspProfError as error:
        st.error(error.message)
        st.info(error.hint or "choose something different")
    st.caption("No run is open. To open one: usp-prof dashboard traces/my-run")


def _report_of(index: int) -> Document | None:
    """Return the report of the whole run, or None if it cannot be built."""
    try:
        return wait(data.ask_document(index, EVERYTHING))
    except UspProfError:
        return None
