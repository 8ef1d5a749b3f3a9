"""The incident story on a page: two buttons that download the most important cause, told for somebody else."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import streamlit as st

from .. import data
from ..answers import incident
from ..answers.verdicts import first_notable
from .findings import shown_at

if TYPE_CHECKING:
    from ..engine import Cause, Document, Section
    from ..state import View


def offer_incident(document: Document, view: View) -> None:
    """Offer the story of the cause that the page's sentence names, as HTML and as Markdown."""
    cause = first_notable(document)
    if cause is None:
        return
    told = _told(cause, view)
    name = data.name(view.run)
    tables = data.open_numbered(view.run).tables
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-") or "run"

    def story() -> tuple[Section, ...]:
        return incident.sections(document, data.timeline_store(view.run), told)

    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("**Incident story** of the first cause", width="content")
        st.download_button(
            "HTML", lambda: incident.as_webpage(story(), tables, name).encode(), f"{stem}-incident.html", "text/html",
            on_click="ignore", help="verdict, culprit, victims, cause, what to change and a link: one page to send",
        )  # fmt: skip
        st.download_button(
            "Markdown", lambda: incident.as_markdown(story(), name), f"{stem}-incident.zip", "application/zip",
            on_click="ignore", help="the same as Markdown, with its drawings beside it",
        )  # fmt: skip


def _told(cause: Cause, view: View) -> incident.Told:
    ranks = data.open_numbered(view.run).tables.ranks
    shown = shown_at(cause.finding, view, ranks)
    origin = re.sub(r"^(https?://[^/]+).*$", r"\1", str(st.context.url or ""))
    return incident.Told(cause, shown, commands(cause, view.run), f"{origin}/timeline?{urlencode(shown)}")


def commands(cause: Cause, run: int) -> tuple[str, ...]:
    """Give what to type to replay the change, and to see the rows that prove the finding."""
    named = data.runs()[run]
    where = shlex.quote(named.path) + (f" --run {shlex.quote(named.run)}" if named.run else "")
    made = []
    if cause.finding.edit:
        made.append(f"usp-prof whatif {where} --edit {shlex.quote(cause.finding.edit)}")
    if cause.finding.rows:
        made.append(f"usp-prof query {where} {shlex.quote(cause.finding.rows)}")
    return tuple(made)
