"""What if page: the run replayed with changes, each alone and all together.

Changes are chosen with switches, sliders and lists. Each choice becomes an edit in the grammar of the text field, so a
link contains all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import streamlit as st

from usp_prof import UspProfError
from usp_prof.model.edit import parse_edit
from usp_prof.model.selection import EVERYTHING
from usp_prof.model.topology import PARALLEL_AXES
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import DataTable, Document
from usp_prof.schedule import Schedule
from usp_prof.whatif.edits import EDITS

from .. import data, state
from ..answers import pictures, verdicts
from ..components.blocks import folded, note_whole_run, picking_figure, show, verdict
from ..components.play import offer_play
from ..report import offer
from ..state import Page, Room
from ..work import wait

AS_IT_IS = "as recorded"
SWITCHES = tuple((edit.example, edit.doc) for edit in EDITS if "=" not in edit.example and "," not in edit.example)
"""Edits without a value."""
LISTS = {
    "schedule": ("Pipeline schedule", tuple(str(schedule) for schedule in Schedule)),
    "recompute": ("Recomputation", ("none", "selective", "full")),
    "zero": ("ZeRO stage", ("0", "1", "2", "3")),
}
"""Edits with one of a few values: their labels and values."""
COUNTS = {
    "dp": "Data parallel (dp)", "tp": "Tensor parallel (tp)", "cp": "Context parallel (cp)",
    "ep": "Expert parallel (ep)", "micro_batches": "Micro-batches",
}  # fmt: skip
"""Labels of the edits with a number."""
MOST = 65536
LARGEST = 10.0
"""Largest factor of a slider."""
_COUNT = re.compile(r"[0-9]{1,5}")
_FACTOR = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?")


def chosen(words: Sequence[str], axes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Show the inputs for `words`; return the edits that they now make, and the words that no input covers."""
    left = list(words)
    edits: list[str] = []
    with st.expander("Choose changes", expanded=True):
        places = st.columns(3)
        for number, (example, doc) in enumerate(SWITCHES):
            words = whatif_answer.in_words(parse_edit(example))
            label = f"{words[:1].upper()}{words[1:]}"
            on = places[number % 3].toggle(label, _pop(left, example), help=doc, **state.bound("edits", example))
            edits += [example] if on else []
        places = st.columns(3)
        for place, name in zip(places, LISTS, strict=True):
            edits += _choice(place, name, left)
        counters = st.columns(len(COUNTS))
        for place, name in zip(counters, COUNTS, strict=True):
            edits += _counted(place, name, left)
        sliders = st.columns(3)
        for number, axis in enumerate(axes):
            edits += _scaled(sliders[number % 3], f"Speedup of {axis} transfers", "comm_faster", f",axis={axis}", left)
        edits += _scaled(sliders[len(axes) % 3], "Speedup of compute", "compute_faster", "", left)
    return edits, left


def _pop(left: list[str], word: str) -> bool:
    if word in left:
        left.remove(word)
        return True
    return False


def _value(left: list[str], name: str, fits: Callable[[str], bool], tail: str = "") -> str:
    """Remove the first edit that an input can show from `left`, and return its value or an empty text.

    Other edits stay in the text field, so that they are replayed or rejected as typed.
    """
    for word in left:
        value = word[len(name) + 1 : len(word) - len(tail)]
        plain = word.startswith(f"{name}=") and word.endswith(tail) and word.count(",") == tail.count(",")
        if plain and fits(value):
            left.remove(word)
            return value
    return ""


def _choice(place: st.delta_generator.DeltaGenerator, name: str, left: list[str]) -> list[str]:
    label, offered = LISTS[name]
    before = _value(left, name, offered.__contains__)
    names = (AS_IT_IS, *offered)
    word = place.selectbox(label, names, names.index(before) if before else 0, **state.bound("edits", name))
    return [] if word == AS_IT_IS else [f"{name}={word}"]


def _counted(place: st.delta_generator.DeltaGenerator, name: str, left: list[str]) -> list[str]:
    before = _value(left, name, lambda word: bool(_COUNT.fullmatch(word)) and 1 <= int(word) <= MOST)
    options = state.bound("edits", name)
    if before:  # as a default, it could not be removed
        st.session_state.setdefault(options["key"], int(before))
    count = place.number_input(COUNTS[name], 1, MOST, None, placeholder="same", **options)
    return [] if count is None else [f"{name}={count}"]


def _scaled(place: st.delta_generator.DeltaGenerator, label: str, name: str, tail: str, left: list[str]) -> list[str]:
    before = _value(left, name, lambda word: bool(_FACTOR.fullmatch(word)) and 1 <= float(word) <= LARGEST, tail)
    factor = place.slider(label, 1.0, LARGEST, float(before or 1), 0.25, "%.2fx", **state.bound("edits", label))
    return [] if factor == 1 else [f"{name}={factor:g}{tail}"]


MOST_LETTERS = 400


def draw() -> None:
    """Draw the page."""
    view = state.current()
    answer = st.container(key="answer")
    heading = answer.container()
    axes = tuple(axis for axis in PARALLEL_AXES if data.open_numbered(view.run).tables.topology.axis_groups(axis))
    chosen_edits, left = chosen(st.query_params.get("edits", "")[:MOST_LETTERS].split(), axes)
    typed = st.text_input(
        "More changes, separated by spaces",
        " ".join(left),
        placeholder="rank_as_peers=all bandwidth=2,axis=dp",
        max_chars=MOST_LETTERS,
        **state.bound("edits"),
    )
    text = " ".join(dict.fromkeys([*chosen_edits, *typed.split()]))
    if typed.split() == left:
        state.choose("edits", text)
    else:  # typed just now: the other inputs show what they can of it
        state.renew("edits", text)
    folded("edits", "List of all changes", _edits)
    document = wait(data.ask_document(view.run, EVERYTHING))
    if not text.strip():
        with heading:
            verdict(verdicts.whatif(document))
            note_whole_run(view.selection)
        with answer:
            _offer_first(view.run, document)
        return
    try:
        edits = tuple(parse_edit(word) for word in text.split())
        with st.spinner("replaying", show_time=True):
            alone = [data.prediction(view.run, (edit,), edits) for edit in edits]
            together = data.prediction(view.run, edits)
    except UspProfError as error:
        heading.error(state.plain(error.message))
        heading.info(state.plain(error.hint or "Choose other changes below."))
        return
    with heading:
        verdict(whatif_answer.verdict(together))
        note_whole_run(view.selection)
    effect_section = whatif_answer.whatif_section(alone, together)
    for number, block in enumerate(effect_section.blocks):
        if isinstance(block, DataTable):
            answer = st.container()  # below the inputs: it grows with each change
        with answer:
            show(block, f"whatif-{number}")
    offer_play(view, wait(data.ask_document(view.run, view.selection)), together)
    offer(WHAT_IF, view.run, text, lambda: (effect_section,))


def _edits() -> None:
    st.dataframe([{"change": edit.example, "what it does": edit.doc} for edit in EDITS], hide_index=True)


def _offer_first(index: int, document: Document) -> None:
    """Show the gain of each finding's change; a click replays it."""
    chart_and_edits = wait(data.ask_made("gains", lambda: pictures.gains(document), index))
    if chart_and_edits is None:
        st.caption("Choose a change below to see what it saves.")
        return
    chart, edits = chart_and_edits
    picking_figure(chart, key="picture-whatif", on_pick=lambda label: state.keep("edits", edits.get(label)))
    st.caption("Problems first, then alternatives. Click a bar to replay that change, or choose others below.")


WHAT_IF = Page("What if", "whatif", draw, Room.PREDICT)
