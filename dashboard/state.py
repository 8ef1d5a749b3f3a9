"""What is selected? The run, its ranks, its steps, the page's own filters: all of it lives in the address.

A link therefore shows what its sender saw. Values from the address are checked like any other input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import streamlit as st

from dashboard import data
from usp_prof.model.selection import Selection

MOST_DIGITS = 9


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


def _step(text: str) -> int | None:
    return int(text) if re.fullmatch(rf"\d{{1,{MOST_DIGITS}}}", text) else None


def plain(text: str) -> str:
    """Keep a trace's names from being read as Markdown or HTML."""
    for sign in "\\`*_{}[]<>#|$~:":
        text = text.replace(sign, "\\" + sign)
    return text


def is_dark() -> bool:
    """Say whether the reader's theme is dark."""
    return getattr(st.context.theme, "type", None) == "dark"
