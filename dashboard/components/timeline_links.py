"""What a link to the timeline holds: range, pinned rows, folded ranks, the picked slice, notes.

All of it is read from the address and checked like any other input. Range, pins, folds and the slice are written there
by the canvas itself (timeline_address.js).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import streamlit as st

from ..timeline.queries import place

if TYPE_CHECKING:
    from ..timeline.store import TimelineStore

MOST_NOTES = 20
MOST_LETTERS = 2000


def linked_range(span_ns: int) -> list[int] | None:
    """Read the range from the address, as far as it lies about the run."""
    match = re.fullmatch(r"(-?\d{1,15})-(\d{1,15})", st.query_params.get("range", ""))
    if not match or int(match[2]) <= int(match[1]):
        return None
    start, end = max(int(match[1]), -span_ns // 2), min(int(match[2]), span_ns + span_ns // 2)
    return [start, end] if start < end else None


def linked_rows(store: TimelineStore) -> list[str]:
    """Read the pinned rows from the address, `rank.row` with dashes between; rows that there are not are left out."""
    found = re.findall(r"(?a)\b(\d{1,6})\.(\d{1,5})\b", st.query_params.get("pins", "")[:MOST_LETTERS])
    there = [(int(rank), int(row)) for rank, row in found if int(rank) in store.ranks]
    return [f"{rank}.{row}" for rank, row in there if row < len(store.rows(rank))]


def linked_folds() -> list[object]:
    """Read the folded ranks from the address: "all", or numbers with dashes between."""
    folds = st.query_params.get("folds", "")[:MOST_LETTERS].split("-")
    return ["all"] if "all" in folds else [int(rank) for rank in folds if re.fullmatch(r"(?a)\d{1,6}", rank)]


def linked_slice(store: TimelineStore) -> dict[str, float] | None:
    """Read the picked slice from the address, `rank.event`; gives where it lies."""
    match = re.fullmatch(r"(?a)(\d{1,6})\.(\d{1,9})", st.query_params.get("picked", ""))
    found = place(store, int(match[1]), int(match[2])) if match else None
    if match is None or found is None:
        return None
    slot = {"start_ns": found.start_ns, "dur_ns": found.dur_ns, "index": found.row}
    return {"rank": found.rank, "event": int(match[2])} | slot


def notes() -> list[dict[str, object]]:
    """Read the notes from the address: `at_ns:text`, one after the other with a bar between."""
    found = []
    for each in st.query_params.get("notes", "")[:MOST_LETTERS].split("|"):
        at, colon, text = each.partition(":")
        if colon and re.fullmatch(r"\d{1,15}", at) and text:
            found.append({"at_ns": int(at), "text": text})
    return found[:MOST_NOTES]
