"""One configuration under sliders: its memory and its step, worked out anew whenever one moves.

Nothing is searched: one prediction is a matter of milliseconds, so that the bars follow the hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from .. import state
from ..engine import (
    Configuration,
    KeyFigure,
    KeyFigures,
    Recompute,
    Schedule,
    Unit,
    broken_rule,
    memory_of_ranks,
    one_plan_answer,
    plan_answer,
    predict_plan,
    quantity,
)
from .blocks import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine import Plan, Question

MOST_MICRO_BATCH = 64
SCHEDULES = tuple(str(schedule) for schedule in Schedule)
RECOMPUTES = tuple(str(kind) for kind in Recompute)


def draw_configuration(question: Question, ask_trainer: Callable[[], str]) -> None:
    """Show what one configuration is predicted to take, and beneath it its sliders: the bars stay in sight."""
    place = st.container()
    chosen = _chosen(question)
    rule = chosen if isinstance(chosen, str) else broken_rule(question.model, chosen)
    if rule or isinstance(chosen, str):
        place.warning(state.plain(rule))
        return
    plan = predict_plan(question.model, chosen, question.cluster, question.convention, profile=question.profile)
    with place:
        _show(question, plan)
    text = plan_answer.started_with(ask_trainer(), question.model, plan.configuration)
    st.code(text, language="sh", wrap_lines=True)


def _chosen(question: Question) -> Configuration | str:
    """Read the sliders; a sentence where they cannot be together. dp takes the devices that the other axes leave."""
    devices = question.devices
    left, middle, right = st.columns(3)
    with left:
        tp = _power("Tensor parallel (tp)", "tp", devices)
        pp = _power("Pipeline parallel (pp)", "pp", devices)
        cp = _power("Context parallel (cp)", "cp", devices)
        ep = _power("Expert parallel (ep)", "ep", question.model.experts) if question.model.experts else 1
    with middle:
        zero = _slide("ZeRO stage", "zero", (0, 1, 2, 3), 1)
        size = _power("Sequences of a micro-batch", "micro", MOST_MICRO_BATCH)
        chunks = _slide("Stages on a pipeline rank", "chunks", (1, 2, 4, 8), 1) if pp > 1 else 1
    with right:
        recompute = _word("Recompute", "recompute", RECOMPUTES)
        schedule = (
            _word("Schedule", "schedule", ("1f1b", *(each for each in SCHEDULES if each != "1f1b")))
            if pp > 1
            else "1f1b"
        )
        sequence_parallel = _word("Sequence parallelism", "sp", ("on", "off")) == "on" if tp > 1 else True
    ranks = tp * pp * cp
    if devices % ranks:
        return f"tp x pp x cp = {ranks} does not divide {devices} devices"
    dp = devices // ranks
    if question.batch % (dp * size):
        return f"dp x micro-batch = {dp * size} does not divide the batch of {question.batch} sequences"
    return Configuration(
        dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, zero=zero if dp * cp > 1 else 0, micro_batch=size,
        micro_batches=question.batch // (dp * size), schedule=schedule, chunks=chunks, recompute=Recompute(recompute),
        dtype=question.dtype, sequence_parallel=sequence_parallel, gradient_bytes=question.gradient_bytes,
    )  # fmt: skip


def _show(question: Question, plan: Plan) -> None:
    dark = state.is_dark()
    ranks = memory_of_ranks(question.model, plan.configuration, question.profile)
    fullest = one_plan_answer.fullest(ranks)
    whole, room = ranks[fullest].total_bytes, question.cluster.memory_bytes
    fits = whole <= room
    figures = (
        KeyFigure("step", plan.step_ns, Unit.NS),
        KeyFigure("tokens/s", round(plan.tokens_per_second), Unit.COUNT),
        KeyFigure(f"MFU ({plan.convention})", plan.mfu, Unit.FRACTION),
        KeyFigure("memory", whole, Unit.BYTES, f"of {quantity(room, Unit.BYTES)}"),
        KeyFigure("data parallel (dp)", plan.configuration.dp, Unit.COUNT, "what the other axes leave"),
    )
    show(KeyFigures(figures), "one-figures", dark)
    if not fits:
        st.error(f"It does not fit: {quantity(whole, Unit.BYTES)} of {quantity(room, Unit.BYTES)}.")
    memory, time = st.columns(2)
    with memory:
        named = f"Memory of pipeline rank {fullest}, the fullest" if len(ranks) > 1 else "Memory of a rank"
        show(one_plan_answer.memory_parts(ranks[fullest], named), "one-memory", dark)
    with time:
        show(one_plan_answer.step_parts(plan), "one-step", dark)
    st.caption(state.plain(one_plan_answer.interval(plan, room)))


# Choices, each kept in the address.


def _power(label: str, name: str, most: int) -> int:
    return _slide(label, name, tuple(2**power for power in range(max(most, 1).bit_length())), 1)


def _slide(label: str, name: str, offered: tuple[int, ...], usual: int) -> int:
    wanted = state.number(name, min(offered), max(offered))
    value = wanted if wanted in offered else usual
    if len(offered) < 2:
        return offered[0]
    chosen: int = st.select_slider(label, offered, value)
    state.keep(name, None if chosen == usual else chosen)
    return chosen


def _word(label: str, name: str, offered: tuple[str, ...]) -> str:
    chosen: str = st.selectbox(label, offered, offered.index(state.word(name, offered)))
    state.keep(name, None if chosen == offered[0] else chosen)
    return chosen
