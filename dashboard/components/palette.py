"""The command palette: a button on every page, `/` or Ctrl-K, that goes to a page, a rank, a finding or a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from usp_prof.findings.causes import causes_of
from usp_prof.model.finding import Finding
from usp_prof.report.document import Document

from .. import data, served_runs, state
from ..timeline.queries import MOST_PATTERN, literal
from .findings import shown_at, with_peers

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage


MOST_FINDINGS = 20
TIMELINE = "timeline"
HTML = """<div class="usp-palette"><button type="button">Go to … <kbd>Ctrl K</kbd></button>
<dialog><input type="text" aria-label="Go to" placeholder="page, rank, finding, or name of a kernel or op">
<ul role="listbox"></ul></dialog></div>"""


@cache
def _renderer() -> Callable[..., Any]:
    style, script = (Path(__file__).with_name(f"palette.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return st.components.v2.component("usp_palette", html=HTML, css=style, js=script)


def palette(
    page_by_path: Mapping[str, StreamlitPage], offered: Sequence[tuple[str, str]], document: Document | None
) -> None:
    """Offer pages (path and title), ranks, findings and names; goes where the reader chose."""
    view = state.current()
    ranks = data.open_numbered(view.run).tables.ranks
    causes = causes_of(document.findings).causes[:MOST_FINDINGS] if document is not None else ()
    findings = [cause.finding for cause in causes]
    chosen = _renderer()(
        data={
            "source": served_runs.source(view.run), "pages": list(offered), "ranks": list(ranks),
            "findings": [finding.title for finding in findings],
        },
        key="palette", width="content", on_chosen_change=lambda: None,
    ).chosen  # fmt: skip
    target = aim(chosen, findings, ranks, [path for path, _ in offered]) if chosen else None
    if target is not None:
        page, query = target
        st.switch_page(page_by_path[page], query_params=state.link(page, query))


def aim(
    chosen: Mapping[str, object],
    findings: Sequence[Finding],
    ranks: Sequence[int],
    paths: Sequence[str],
) -> tuple[str, dict[str, str]] | None:
    """Return the page and the address that the reader chose, or None if they do not exist."""
    kind, value = chosen.get("kind"), chosen.get("value")
    match kind, value:
        case "page", str(path) if path in paths:
            return path, {}
        case "rank", int(rank) if rank in ranks:
            return TIMELINE, {"only": state.format_ranks(with_peers({rank}, ranks)), "focus": str(rank)}
        case "finding", int(place) if 0 <= place < len(findings):
            return TIMELINE, shown_at(findings[place], ranks)
        case "name", str(name):
            return TIMELINE, {"find": literal(name), "show": "host,exposed"}
        case "search", str(pattern):
            return TIMELINE, {"find": pattern[:MOST_PATTERN], "show": "host,exposed"}
    return None
