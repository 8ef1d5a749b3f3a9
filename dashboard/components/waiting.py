"""What does a page show until its answer is there? How far the work is, for every session that waits for it."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

import streamlit as st

from dashboard import data

T = TypeVar("T")
LOOK_EVERY_S = 0.15
PATIENCE_S = 0.05
"""An answer that comes within this needs no bar."""


def wait(answer: Future[T]) -> T:
    """Give an answer; while it is computed, show how far it is."""
    try:
        return answer.result(PATIENCE_S)
    except NotYet:
        if answer.done():  # the work itself ran out of time
            raise
    place = st.empty()
    while not answer.done():
        now = data.worker.now
        count = f" {now.done:,} of {now.of:,}" if now.of and now.of < 10_000 else ""
        place.progress(now.fraction, f"{now.text or 'waiting'}{count}")
        try:
            answer.result(LOOK_EVERY_S)
        except NotYet:
            continue
    place.empty()
    return answer.result()
