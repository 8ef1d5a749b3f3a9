"""Selection, stored in the address: the run, its ranks and steps, and the page's own choices.

A link therefore shows what its sender saw. Values from the address are checked like any other input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import streamlit as st

from usp_prof import UspProfError
from usp_prof.model.printable import spans
from usp_prof.model.selection import Selection
from usp_prof.report.document import Document

from . import data, served_runs

MOST_DIGITS = 9
MOST_SHOWN = 80
SHARED = frozenset({"run", "ranks", "steps"})
"""Parameters of all pages; others belong to one page."""
_OWN = "own addresses"
_IGNORED = "ignored values"


def everything(_: Document) -> str:
    """Return an empty reason, for pages that any run has content for."""
    return ""


class Room(StrEnum):
    """Groups of pages in the navigation."""

    DIAGNOSE = "Diagnose"
    TIMELINE = "Timeline"
    PREDICT = "Predict"
    COMPARE = "Compare"
    LEARN = "Learn"
    ASIDE = "Query"
    """Linked in the sidebar, not in the navigation."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its title in the navigation, its path in the address, and the function that draws it."""

    title: str
    path: str
    draw: Callable[[], None]
    room: Room
    lacks: Callable[[Document], str] = everything
    """Returns why the page is empty for a run, or an empty text."""
    part_of: str = ""
    """Path of the page that contains it, for addresses of old links."""
    needs_run: bool = True
    """Whether it needs a recorded run."""


@dataclass(frozen=True, slots=True)
class View:
    """The selection that every page shares."""

    run: int
    ranks: tuple[int, ...] | None
    first_step: int | None
    last_step: int | None

    @property
    def selection(self) -> Selection:
        """The part of the run as the analyses take it."""
        return Selection(self.ranks, self.first_step, self.last_step)


@dataclass(slots=True)
class Choice:
    """A choice that widgets show and the address contains."""

    written: str
    """Its value in the address, as the page wrote or read it last."""
    generation: int = 0
    """How many addresses that the page did not write have replaced it."""
    is_clicked: bool = False
    """Whether the reader has changed a widget since the address was written."""

    def click(self) -> None:
        """Note that the reader changed a widget."""
        self.is_clicked = True


def parse_ranks(text: str, known_ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Parse '0,2,4-7'; unknown ranks are dropped, and None means all."""
    wanted: set[int] = set()
    for low, high in re.findall(rf"(\d{{1,{MOST_DIGITS}}})(?:-(\d{{1,{MOST_DIGITS}}}))?", text):
        first, last = int(low), int(high or low)
        wanted.update(rank for rank in known_ranks if first <= rank <= last)
    return tuple(sorted(wanted)) or None


def format_ranks(ranks: tuple[int, ...] | None) -> str:
    """Write ranks as '0,2,4-7'; the inverse of `parse_ranks`."""
    return spans(ranks or ()).replace(" ", "")


def number(name: str, low: int, high: int) -> int | None:
    """Read a whole number from the address; None if it is missing or out of bounds."""
    text = st.query_params.get(name, "")
    if re.fullmatch(rf"-?\d{{1,{MOST_DIGITS}}}", text) and low <= int(text) <= high:
        return int(text)
    ignore(name)
    return None


def word(name: str, offered: tuple[str, ...]) -> str:
    """Read one of the offered words from the address; the first is the default."""
    value = st.query_params.get(name, "")
    if value in offered:
        return value
    ignore(name)
    return offered[0]


def ignore(name: str) -> None:
    """Note that the page does not offer a value of the address, if it has one; `write` then leaves the address."""
    if value := st.query_params.get(name, ""):
        st.session_state.setdefault(_IGNORED, {})[name] = value


def take_ignored() -> list[str]:
    """Describe the values of the address that the page did not offer, and forget them."""
    return [
        f"{name}={value[:MOST_SHOWN]} is not offered here. The page shows its default."
        for name, value in st.session_state.pop(_IGNORED, {}).items()
    ]


def keep(name: str, value: object) -> None:
    """Write a value into the address; None removes it."""
    if value in (None, ""):
        if name in st.query_params:
            del st.query_params[name]
    elif st.query_params.get(name) != str(value):
        st.query_params[name] = str(value)


def bound(name: str, *identity: object) -> dict[str, Any]:
    """Return the options of a widget whose default is from the address.

    Streamlit takes a widget with another default for a new one and drops clicks on the one before, unless it has a key.
    The key stays while the page itself writes the address. Another address, for example of a link, makes new widgets,
    and so does another `identity`: what the widget offers, or its default without an address. A click may arrive with
    the address from before the last click: the widgets are right then.
    """
    value = st.query_params.get(name, "")
    choice = st.session_state.setdefault(f"choice {name}", Choice(value))
    if value != choice.written and not choice.is_clicked:
        choice.written = value
        choice.generation += 1
    key = " ".join(map(str, (name, choice.generation, *identity)))
    return {"key": key, "on_change": choice.click}


def write(name: str, value: object) -> bool:
    """Write the value of `bound` widgets into the address, and return whether it changed.

    An ignored value of a link stays until the reader changes the widget, and so does the remark about it.
    """
    before = st.query_params.get(name, "")
    choice = st.session_state[f"choice {name}"]
    if choice.is_clicked or before != st.session_state.get(_IGNORED, {}).get(name):
        keep(name, value)
    choice.written = st.query_params.get(name, "")
    choice.is_clicked = False
    return choice.written != before


def choose(name: str, value: object) -> None:
    """Write the value of `bound` widgets into the address, and draw the page again if it changed."""
    if write(name, value):
        st.rerun()


def renew(name: str, value: object) -> None:
    """Write a value into the address, and draw the page again with new `bound` widgets that show it."""
    write(name, value)
    st.session_state[f"choice {name}"].generation += 1
    st.rerun()


def current() -> View:
    """Read the shared selection from the address."""
    run = run_index()
    known_ranks = data.open_numbered(run).tables.ranks
    ranks = parse_ranks(st.query_params.get("ranks", ""), known_ranks)
    first, last = steps()
    if not _has_steps(first, last, data.steps_of(run)):
        first = last = None
    return View(run, ranks, first, last)


class NotServedError(UspProfError):
    """The address names a run that this dashboard does not serve."""


def run_index() -> int:
    """Return the place of the run that the address names; without a name, the first run."""
    text = st.query_params.get("run", "")
    if not text:
        return 0
    index = served_runs.index_of(text)
    if index is None:
        hint = "Choose one of the runs below, or start: usp-prof dashboard PATH [PATH ...]"
        raise NotServedError(not_served(text), hint=hint)
    return index


def not_served(text: str) -> str:
    """Return why the run that an address names is not shown."""
    return f"Run {text[:MOST_SHOWN]!r} is not served here, or its trace files changed since the link was made."


def steps() -> tuple[int | None, int | None]:
    """Read the first and the last step from the address; None if there are none."""
    first, _, last = st.query_params.get("steps", "").partition("-")
    bounds = _step(first), _step(last or first)
    return bounds if None not in bounds else (None, None)


def unmatched(known_ranks: tuple[int, ...], known_steps: Collection[int]) -> list[str]:
    """Describe the parts of the selection that the run does not have, and what is shown instead."""
    remarks = []
    text = st.query_params.get("ranks", "")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    unknown_parts = [part for part in parts if parse_ranks(part, known_ranks) is None]
    if unknown_parts:
        shown = "All ranks" if unknown_parts == parts else "The others"
        remarks.append(f"Rank {', '.join(unknown_parts)[:MOST_SHOWN]} is not in this run. {shown} are shown.")
    first, last = steps()
    text = st.query_params.get("steps", "")
    if text and (first is None or not _has_steps(first, last, known_steps)):
        shown = text[:MOST_SHOWN] if first != last or first is None else f"{first}"
        has = f"step{'s' if len(known_steps) > 1 else ''} {spans(sorted(known_steps))}" if known_steps else "no steps"
        remarks.append(f"Step {shown} is not in this run, which has {has}. Everything is shown.")
    return remarks


def _has_steps(first: int | None, last: int | None, known_steps: Collection[int]) -> bool:
    """Return whether a run has a step of the selection; an empty selection is always there."""
    return first is None or last is None or any(first <= step <= last for step in known_steps)


def link(page: str, words: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the address of a link to a page: the selection, how the page was left, and what the link names.

    A link that names the page's own choices gets no remembered ones. It always names the run.
    """
    if not served_runs.run_count():
        return dict(words)
    run = served_runs.key(run_index())
    shared = {name: value for name, value in st.query_params.to_dict().items() if name in SHARED}
    own = {} if words.keys() - SHARED else st.session_state.get(_OWN, {}).get((run, page), {})
    return {**shared, "run": run, **own, **words}


def remember(page: str) -> None:
    """Remember a page's own choices in this run, for when the reader returns by its tab."""
    if page == "timeline":  # its client remembers its own view
        return
    with suppress(NotServedError):
        run = served_runs.key(run_index()) if served_runs.run_count() else ""
        own = {name: value for name, value in st.query_params.to_dict().items() if name not in SHARED}
        st.session_state.setdefault(_OWN, {})[run, page] = own


def choose_run(index: int) -> None:
    """Write another run into the address; choices that belong to the previous run are removed."""
    for name in st.query_params.to_dict():
        if name != "run":
            del st.query_params[name]
    st.query_params["run"] = served_runs.key(index)


def _step(text: str) -> int | None:
    return int(text) if re.fullmatch(rf"\d{{1,{MOST_DIGITS}}}", text) else None


def plain(text: str) -> str:
    """Escape Markdown and HTML in a trace's names."""
    for sign in "\\`*_{}[]<>#|$~:":
        text = text.replace(sign, "\\" + sign)
    return text


def is_dark() -> bool:
    """Return whether the reader's theme is dark."""
    return getattr(st.context.theme, "type", None) == "dark"
