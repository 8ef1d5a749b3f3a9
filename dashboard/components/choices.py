"""Choices: widgets whose value is in the address, unless it is the usual one."""

from __future__ import annotations

from typing import Any

import streamlit as st

from .. import state


def choose_word(label: str, name: str, offered: tuple[str, ...], *, place: Any = st, **options: Any) -> str:  # noqa: ANN401 - Streamlit's own options
    """Choose one of the offered words in a select box; the first one is the usual one."""
    before = offered.index(state.word(name, offered))
    chosen: str = place.selectbox(label, offered, before, **state.bound(name, *offered), **options)
    state.choose(name, None if chosen == offered[0] else chosen)
    return chosen


def choose_tab(label: str, name: str, offered: tuple[str, ...], usual: str, **options: Any) -> str:  # noqa: ANN401 - Streamlit's own options
    """Choose one of the offered words in a row of buttons; a second click on it chooses the usual one."""
    before = state.word(name, (usual, *offered))
    options |= state.bound(name, *offered)
    chosen: str = st.segmented_control(label, offered, default=before, **options) or usual
    state.choose(name, None if chosen == usual else chosen)
    return chosen


def usual_first(usual: str, offered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the offered words with the usual one first."""
    return (usual, *(other for other in offered if other != usual))


def type_integer(label: str, name: str, least: int, most: int, usual: int) -> int:
    """Type a whole number."""
    wanted = state.number(name, least, most)
    before = usual if wanted is None else wanted
    chosen = int(st.number_input(label, least, most, before, **state.bound(name, least, most, usual)))
    state.choose(name, None if chosen == usual else chosen)
    return chosen


def slide(label: str, name: str, offered: tuple[int, ...], usual: int) -> int:
    """Choose one of the offered numbers with a slider; there is none for a single number."""
    wanted = state.number(name, min(offered), max(offered))
    usual = usual if usual in offered else offered[0]
    if wanted not in offered:
        state.ignore(name)
        wanted = usual
    if len(offered) < 2:
        return offered[0]
    chosen: int = st.select_slider(label, offered, wanted, **state.bound(name, usual, *offered))
    state.choose(name, None if chosen == usual else chosen)
    return chosen


def slide_power(label: str, name: str, most: int, usual: int) -> int:
    """Choose a power of two with a slider."""
    return slide(label, name, tuple(2**exponent for exponent in range(max(most, 1).bit_length())), usual)
