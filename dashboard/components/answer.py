"""How does what a page with choices says leave the page? As one file of HTML, and as a part of the whole report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data
from dashboard.answers.answer import Answer, as_document
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.facts import run_facts
from usp_prof.report.writers import webpage

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.report.document import Section

_KEPT = "answers"


def offer(page: str, title: str, run: int, choice: str, sections: Callable[[], tuple[Section, ...]]) -> None:
    """Offer what a page shows as one file of HTML, and keep it for the report of this session."""
    answer = Answer(run, page, title, choice, sections)
    st.session_state.setdefault(_KEPT, {})[page] = answer
    name = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', data.name(run)).strip('-') or 'run'}-{page}.html"
    st.download_button(
        "This page as HTML", lambda: written(answer).encode(), name, "text/html", key=f"html-{page}", on_click="ignore",
        help="what is shown here, with its charts, in one file that needs no server",
    )  # fmt: skip


def kept(run: int) -> tuple[Answer, ...]:
    """Give what this session's pages last said of a run."""
    answers: dict[str, Answer] = st.session_state.get(_KEPT, {})
    return tuple(answer for answer in answers.values() if answer.run == run)


def written(answer: Answer) -> str:
    """Write one page's answer as HTML."""
    run = data.open_numbered(answer.run)
    return webpage.write([as_document(answer, run_facts(run.tables, EVERYTHING, data.name(answer.run)))])
