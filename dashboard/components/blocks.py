"""Blocks of the report shown on a page: Streamlit as one more writer of the document. Nothing is computed here."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, singledispatch
from pathlib import Path
from typing import Any

import streamlit as st

from usp_prof.charts.theme import DARK, LIGHT, PATTERNS, Theme
from usp_prof.model.health import Severity, gathered
from usp_prof.model.metric import Unit
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import Block, Chart, DataTable, Document, Health, KeyFigures, Section, Stack, Text
from usp_prof.report.format import quantity, share
from usp_prof.whatif.predict import Prediction

from .. import data, state
from ..drawings import LIBRARY, Drawing
from .download import show_table

_SIGNS = {Severity.INFO: "○", Severity.ERROR: "▲", Severity.DATA_LOSS: "■"}
_WIDE = 6
_CODE = re.compile(r"`([^`]+)`")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|[num\u03bc]?s\b|[KMGT]i?B\b|x\b)|(?<=\u00b1) ")
"""Spaces of a figure with its unit or sign, where no line may end."""
_LINE = "#7D8691 0 1px,transparent 1px 5px"
_HATCHES = {
    "/": f"repeating-linear-gradient(135deg,{_LINE}),",
    "-": f"repeating-linear-gradient(0deg,{_LINE}),",
    "x": f"repeating-linear-gradient(45deg,{_LINE}),repeating-linear-gradient(135deg,{_LINE}),",
    ".": "radial-gradient(#7D8691 1px,transparent 1.5px) 0 0/6px 6px,",
}
"""The hatches of the charts, in CSS."""


def theme() -> Theme:
    """Return the charts' theme that fits the page."""
    return DARK if state.is_dark() else LIGHT


def section(part: Section) -> None:
    """Show a section's blocks under its title."""
    st.subheader(state.plain(part.title), anchor=part.id)
    show_all(part.blocks, part.id)


def show_all(blocks: Sequence[Block], key: str) -> None:
    """Show blocks one below the other; their keys are numbered."""
    for number, block in enumerate(blocks):
        show(block, f"{key}-{number}")


_FIGURE_HTML = '<div class="usp-figure"></div>'
_FIGURE_CSS = ".usp-figure { width: 100%; }"


@cache
def _renderer() -> Callable[..., Any]:
    script = Path(__file__).with_name("figure.js").read_text(encoding="utf-8")
    return st.components.v2.component("usp_figure", html=_FIGURE_HTML, css=_FIGURE_CSS, js=script, isolate_styles=False)


def figure(drawing: Drawing, *, key: str) -> None:
    """Show a drawing; the same one is drawn once in the browser, whatever reruns."""
    _renderer()(data=_as_data(drawing), key=key)


def picking_figure(block: Chart, *, key: str, on_pick: Callable[[str], None]) -> None:
    """Show a chart with clickable marks; `on_pick` gets the label of the clicked mark."""

    def pick() -> None:
        label = st.session_state.get(key, {}).get("picked")
        if label:
            on_pick(str(label))

    if block.title:
        st.markdown(f"**{state.plain(block.title)}**")
    drawing = data.drawings.drawing(block.data, theme())
    _renderer()(data=_as_data(drawing) | {"picks": True}, key=key, default={"picked": None}, on_picked_change=pick)


def _as_data(drawing: Drawing) -> dict[str, object]:
    return {"item": drawing.item, "stamp": drawing.stamp, "height": drawing.height, "library": LIBRARY}


@singledispatch
def show(block: Block, key: str) -> None:  # noqa: ARG001 - one signature for all kinds
    """Show one block."""
    raise TypeError(f"no way to show a {type(block).__name__}")


@show.register
def _(block: KeyFigures, key: str) -> None:  # noqa: ARG001 - one signature for all kinds
    for place, item in zip(st.columns(min(len(block.figures), _WIDE)) * 9, block.figures, strict=False):
        place.metric(item.label, quantity(item.value, item.unit))
        if item.second:
            place.caption(state.plain(unbroken(item.second)))


@show.register
def _(block: Stack, key: str) -> None:  # noqa: ARG001 - one signature for all kinds
    total = "" if block.unit is Unit.FRACTION else f": {quantity(block.total, block.unit)}"
    st.markdown(f"**{state.plain(block.title)}**{total}")
    show_parts(block)


def show_parts(block: Stack) -> None:
    """Show the bar of a stack and its legend."""
    colors = theme()
    bars, names = "", []
    for part in block.visible_parts:
        color = colors.color(part.role)
        label = html.escape(part.label, quote=True)
        length = "" if block.unit is Unit.FRACTION else f"{quantity(part.value, block.unit)}, "
        ground = f"{_HATCHES.get(PATTERNS.get(part.role, ''), '')}{color}"
        bars += f"<div style='width:{100 * part.value / block.total:.3f}%;background:{ground}' title='{label}'></div>"
        names.append((ground, f"{label} {length}{share(part.value, block.total)}"))
    st.html(
        f"<div style='display:flex;height:26px;border-radius:3px;overflow:hidden'>{bars}</div>"
        f"<div style='font-size:13px;line-height:2'>{swatches(names)}</div>"
    )


def swatches(names: Iterable[tuple[str, str]]) -> str:
    """Return a legend in HTML: for each pair a square with this background, and a name."""
    square = "display:inline-block;width:10px;height:10px;margin-right:5px"
    return "".join(
        f"<span style='margin-right:14px;display:inline-block'><span style='{square};background:{ground}'></span>"
        f"{name}</span>"
        for ground, name in names
    )


@show.register
def _(block: DataTable, key: str) -> None:
    if block.title:
        st.markdown(f"**{state.plain(block.title)}**")
    show_table(block, key)


@show.register
def _(block: Text, key: str) -> None:  # noqa: ARG001 - one signature for all kinds
    (st.caption if block.quiet else st.write)(state.plain(block.text))


@show.register
def _(block: Health, key: str) -> None:  # noqa: ARG001 - one signature for all kinds
    for row in gathered(block.rows):
        where = f"rank {row.rank}: " if row.rank >= 0 else ""
        st.caption(f"{_SIGNS[row.severity]} {where}{state.plain(row.detail or row.code)}")
    if block.more:
        notes = "note" if block.more == 1 else "notes"
        st.caption(f"{block.more} more under Health" if block.rows else f"{block.more} {notes} under Health")


@show.register
def _(block: Chart, key: str) -> None:
    if block.title:
        st.markdown(f"**{state.plain(block.title)}**")
    figure(data.drawings.drawing(block.data, theme()), key=f"figure-{key}")


def unbroken(text: str) -> str:
    """Keep figures and their units on one line."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


# A page's first screen: one sentence. Details are folded below the picture.


def verdict(text: str) -> None:
    """Open a page with the sentence that answers its question."""
    if text:
        marked_up = _CODE.sub(r"<code>\1</code>", html.escape(unbroken(text)))
        st.html(f"<h1 class='usp-verdict'>{marked_up}</h1>")


def note_whole_run(selection: Selection) -> None:
    """Show, on a page that always covers the whole run, that a selection does not apply."""
    if selection != EVERYTHING:
        st.caption("This page covers all ranks and steps of the run, not only the selected ones.")


def now_and_predicted(together: Prediction | None, changes: str) -> None:
    """Show the step of the ranks that were replayed, now and as predicted, in one line that stays in sight."""
    if together is None:
        st.html(f"<b>As recorded</b> ({html.escape(changes)})")
        return
    now, then = (quantity(length, Unit.NS) for length in (together.before_ns, together.after_ns))
    gain, error = (quantity(part, Unit.FRACTION) for part in (together.gain_fraction, together.error_fraction))
    step = whatif_answer.step_of(together)
    step = f"{step[:1].upper()}{step[1:]}"
    st.html(f"<b>{step}: {now} → {then} predicted</b>, gain {gain} ±{error} ({html.escape(changes)})")


def page_link(page: str, label: str, words: Mapping[str, str] | None = None, help: str | None = None) -> None:  # noqa: A002 - Streamlit's name
    """Link to a page with its selection and these parameters; nothing is shown where a page is drawn alone."""
    pages = st.session_state.get("pages", {})
    if page in pages:
        st.page_link(pages[page], label=label, help=help, query_params=state.link(page, words or {}))


def folded(key: str, title: str, draw: Callable[[], None]) -> bool:
    """Offer something under its title, and return whether it is unfolded; only then it is drawn.

    What is unfolded lives in the address.
    """
    opened = [name for name in st.query_params.get("open", "").split(",") if name]
    place = st.expander(title, key in opened, **state.bound("open", key))
    other_keys = [name for name in opened if name != key]
    state.write("open", ",".join([*other_keys, key] if place.open else other_keys))
    if place.open:
        with place:
            draw()
    return bool(place.open)


def fold_sections(document: Document, wanted: Sequence[str], *, without: Sequence[Block] = ()) -> None:
    """Fold the wanted sections of the report below a page's picture, less the blocks that it shows already.

    The page of the same name as a section shows its pictures, so the section's tables remain.
    """
    shown = {id(block) for block in without}
    parts = {part.id: part for part in document.sections}
    for name in wanted:
        if name not in parts:
            continue
        blocks = tuple(block for block in parts[name].blocks if id(block) not in shown)
        if blocks:
            title = parts[name].title
            if name in st.session_state.get("pages", {}):
                title += " in tables"
            folded(name, state.plain(title), partial(show_all, blocks, name))
