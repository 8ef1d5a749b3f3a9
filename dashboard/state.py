"""The selection, which lives in the address: the run, its ranks and steps, the page's own choices.

A link therefore shows what its sender saw. Values from the address are checked like any other input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

import streamlit as st

from . import data
from .engine import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .engine import Document

MOST_DIGITS = 9
SHARED = frozenset({"run", "ranks", "steps"})
"""What every page selects by; all else in an address is of its page."""
_OWN = "own addresses"


def everything(_: Document) -> str:
    """Return for a page that has something to show of any run that it lacks nothing."""
    return ""


class Room(StrEnum):
    """What a reader comes for; the pages of a room stand beside each other."""

    DIAGNOSE = "Diagnose"
    TIMELINE = "Timeline"
    PREDICT = "Predict"
    COMPARE = "Compare"
    LEARN = "Learn"
    ASIDE = "Query"
    """Beside the rooms, under the choice of run."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its title in the navigation, its path in the address, and the function that draws it."""

    title: str
    path: str
    draw: Callable[[], None]
    room: Room
    lacks: Callable[[Document], str] = everything
    """Why a run has nothing to show here, empty where it has something."""
    part_of: str = ""
    """The path of the page under which it is offered, for an address that is kept for old links."""
    needs_run: bool = True
    """Whether it is about a run that was recorded."""


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


def parse_ranks(text: str, known: tuple[int, ...]) -> tuple[int, ...] | None:
    """Read '0,2,4-7'; ranks that there are not are left out, and nothing left means all."""
    wanted: set[int] = set()
    for low, high in re.findall(rf"(\d{{1,{MOST_DIGITS}}})(?:-(\d{{1,{MOST_DIGITS}}}))?", text):
        first, last = int(low), int(high or low)
        wanted.update(rank for rank in known if first <= rank <= last)
    return tuple(sorted(wanted)) or None


def format_ranks(ranks: tuple[int, ...] | None) -> str:
    """Write ranks as '0,2,4-7'; the inverse of `parse_ranks`."""
    spans: list[list[int]] = []
    for rank in ranks or ():
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def number(name: str, low: int, high: int) -> int | None:
    """Read a whole number from the address; None when it is missing or out of its bounds."""
    text = st.query_params.get(name, "")
    if not re.fullmatch(rf"-?\d{{1,{MOST_DIGITS}}}", text):
        return None
    return int(text) if low <= int(text) <= high else None


def word(name: str, offered: tuple[str, ...]) -> str:
    """Read one of the offered words from the address; the first is the default."""
    value = st.query_params.get(name, "")
    return value if value in offered else offered[0]


def keep(name: str, value: object) -> None:
    """Write a value into the address; None takes it out."""
    if value in (None, ""):
        if name in st.query_params:
            del st.query_params[name]
    elif st.query_params.get(name) != str(value):
        st.query_params[name] = str(value)


def current() -> View:
    """Read the shared selection from the address."""
    run = number("run", 0, data.run_count() - 1) or 0
    known = data.open_numbered(run).tables.ranks
    ranks = parse_ranks(st.query_params.get("ranks", ""), known)
    first, _, last = st.query_params.get("steps", "").partition("-")
    return View(run, ranks, _step(first), _step(last or first))


def link(page: str, words: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the address of a link to a page: the selection, how the page was left, and what the link names.

    A link that names choices of the page's own brings no others. It holds all that it leads to, and an address is shown
    as it stands: gone back to, it is what it was.
    """
    shared = {name: value for name, value in st.query_params.to_dict().items() if name in SHARED}
    own = {} if words.keys() - SHARED else st.session_state.get(_OWN, {}).get(page, {})
    return {**shared, **own, **words}


def remember(page: str) -> None:
    """Keep a page's own choices for when the reader comes back to it by its tab."""
    own = {name: value for name, value in st.query_params.to_dict().items() if name not in SHARED}
    st.session_state.setdefault(_OWN, {})[page] = own


def _step(text: str) -> int | None:
    return int(text) if re.fullmatch(rf"\d{{1,{MOST_DIGITS}}}", text) else None


def plain(text: str) -> str:
    """Keep a trace's names from being read as Markdown or HTML."""
    for sign in "\\`*_{}[]<>#|$~:":
        text = text.replace(sign, "\\" + sign)
    return text


def is_dark() -> bool:
    """Return whether the reader's theme is dark."""
    return getattr(st.context.theme, "type", None) == "dark"
