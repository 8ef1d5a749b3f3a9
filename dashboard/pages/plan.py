"""Plan and Sweep: configurations that were never run, each predicted for the model that was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from .. import data, state
from ..components.blocks import folded, show, verdict
from ..components.download import data_table
from ..engine import (
    DEFAULT_PROFILE,
    DEVICES,
    GRID_AXES,
    TRAINERS,
    Plans,
    Question,
    cluster_of_device,
    plan_answer,
)
from ..report import offer
from ..state import Page, Room
from ..work import wait

if TYPE_CHECKING:
    from ..engine import Calibration, Document, Plan


MOST_DEVICES = 4096
MOST_SEQUENCES = 65536
DTYPES = ("bf16", "fp16", "fp32", "fp8")
MOST_PLANS = 200
"""How many plans the choice and the table offer; the chart shows all."""
AS_RECORDED = "as recorded"


# The question: choices above both pages. All of them live in the address.


def _ask_plans() -> tuple[Calibration, Plans]:
    """Show the choices; give what the run taught the planner, and the plans that fit."""
    calibration = wait(data.ask_calibration(state.current().run))
    place = st.container()
    plans = wait(data.ask_plans(_question(calibration)))
    with place:
        verdict(plan_answer.verdict(calibration, plans))
    show(plan_answer.basis(calibration, plans), "plan-basis", state.is_dark())
    return calibration, plans


def _question(calibration: Calibration) -> Question:
    """Show a choice of devices, batch, device and type; what stays as recorded is left out of the address."""
    recorded = calibration.configuration
    devices_column, batch_column, device_column, dtype_column = st.columns(4)
    devices = devices_column.number_input(
        "Devices", 1, MOST_DEVICES, state.number("devices", 1, MOST_DEVICES) or recorded.devices
    )
    batch = batch_column.number_input(
        "Sequences a step", 1, MOST_SEQUENCES, state.number("batch", 1, MOST_SEQUENCES) or recorded.batch
    )
    device_names = (AS_RECORDED, *(device.name for device in DEVICES))
    device_name = device_column.selectbox(
        "Device", device_names, device_names.index(state.word("device", device_names))
    )
    dtypes = (recorded.dtype, *(dtype for dtype in DTYPES if dtype != recorded.dtype))
    dtype = dtype_column.selectbox("Type", dtypes, dtypes.index(state.word("dtype", dtypes)))
    state.keep("devices", None if devices == recorded.devices else devices)
    state.keep("batch", None if batch == recorded.batch else batch)
    state.keep("device", None if device_name == AS_RECORDED else device_name)
    state.keep("dtype", None if dtype == recorded.dtype else dtype)
    if device_name == AS_RECORDED:
        cluster, profile = calibration.cluster, calibration.profile
    else:
        known = cluster_of_device(device_name, dtype)
        cluster, profile = replace(known, efficiency=_efficiency(known.efficiency)), DEFAULT_PROFILE
    return Question(calibration.model, cluster, int(devices), int(batch), dtype, profile=profile)


def _efficiency(measured: float) -> float:
    """Ask for the share of its peak that another device reaches, 0..1."""
    usual = round(100 * measured)
    percent = state.number("efficiency", 1, 100) or usual
    chosen = st.slider("Of its peak that a large matrix product reaches, %", 1, 100, percent)
    state.keep("efficiency", None if chosen == usual else chosen)
    return measured if chosen == usual else chosen / 100


def _no_plan(document: Document) -> str:
    return "" if document.run.model else "The run does not tell its model: record it with usp_prof.record."


# Plan: every legal configuration predicted, the fastest first, and what fills the memory of one.


def draw_plan() -> None:
    """Draw the plans that fit, and one of them."""
    calibration, plans = _ask_plans()
    if not plans.best:
        st.info("Choose more devices, or a device with more memory.")
        return
    front = wait(data.ask_front(plans))
    show(front, "plan-front", state.is_dark())
    shown = plans.best[:MOST_PLANS]
    picked, trainer = _one(plans, shown)
    folded(
        "plans", f"All {len(plans.best):,} plans that fit, the fastest first",
        lambda: data_table(plan_answer.listed(plans.best, MOST_PLANS), "plans", raw=plan_answer.frame(plans.best)),
    )  # fmt: skip
    folded("sweep", "Sweep: a figure over two degrees", lambda: _sweep(plans))
    choice = f"{data.question_key(plans.question)} {picked.configuration} {trainer}"
    offer(PLAN, state.current().run, choice, lambda: plan_answer.sections(calibration, plans, picked, trainer))


def _one(plans: Plans, shown: tuple[Plan, ...]) -> tuple[Plan, str]:
    """Show one plan: its figures, the memory of each pipeline rank, and how it is started."""
    st.markdown("**One of them**")
    names = [str(each.configuration) for each in shown]
    wanted = st.query_params.get("plan", "")
    place = st.selectbox("Plan", range(len(names)), names.index(wanted) if wanted in names else 0, names.__getitem__)
    state.keep("plan", names[place] if place else None)
    trainers = tuple(TRAINERS)
    made = plan_answer.one(plans, shown[place], trainers[0])
    for number, block in enumerate(made.blocks[:-1]):
        show(block, f"plan-{number}", state.is_dark())
    trainer = st.segmented_control("Start it with", trainers, default=state.word("trainer", trainers)) or trainers[0]
    state.keep("trainer", None if trainer == trainers[0] else trainer)
    st.code(
        plan_answer.started_with(trainer, plans.question.model, shown[place].configuration),
        language="sh",
        wrap_lines=True,
    )
    return shown[place], trainer


PLAN = Page("Plan", "plan", draw_plan, Room.PREDICT, _no_plan)


# Sweep: how a figure changes from configuration to configuration, as a heat map over any two degrees.


def draw_sweep() -> None:
    """Draw a heat map of one figure over two degrees; Plan has it as well, folded."""
    _, plans = _ask_plans()
    if not plans.best:
        st.info("Choose more devices, or a device with more memory.")
        return
    _sweep(plans)


def _sweep(plans: Plans) -> None:
    down_column, across_column, figure_column = st.columns(3)
    down = _axis(down_column, "Down", "down", GRID_AXES)
    # The second axis comes first, so that the default is not the one that goes down.
    others = tuple(axis for axis in (*GRID_AXES[1:], GRID_AXES[0]) if axis != down)
    across = _axis(across_column, "Across", "across", others)
    figures = tuple(plan_answer.SWEEP_FIGURES)
    figure = figure_column.selectbox("Figure", figures, figures.index(state.word("figure", figures)))
    state.keep("figure", None if figure == figures[0] else figure)
    heat_map = plan_answer.sweep_section(plans, down, across, figure)
    for number, block in enumerate(heat_map.blocks):
        show(block, f"sweep-{number}", state.is_dark())
    choice = f"{data.question_key(plans.question)} {down} {across} {figure}"
    offer(SWEEP, state.current().run, choice, lambda: (heat_map,))


def _axis(place: st.delta_generator.DeltaGenerator, label: str, name: str, offered: tuple[str, ...]) -> str:
    chosen: str = place.selectbox(label, offered, offered.index(state.word(name, offered)))
    state.keep(name, None if chosen == offered[0] else chosen)
    return chosen


SWEEP = Page("Sweep", "sweep", draw_sweep, Room.PREDICT, _no_plan, part_of=PLAN.path)
