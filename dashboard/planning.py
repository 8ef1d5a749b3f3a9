"""What is to be planned? The choices above the pages Plan and Sweep: all of them live in the address."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data, state
from dashboard.answers import plan
from dashboard.components.blocks import show
from dashboard.components.waiting import wait
from usp_prof.model.hardware import DEVICES
from usp_prof.planner.cluster import of_device
from usp_prof.planner.search import Plans, Question

if TYPE_CHECKING:
    from usp_prof.planner.calibration import Calibration

MOST_DEVICES = 4096
MOST_SEQUENCES = 65536
DTYPES = ("bf16", "fp16", "fp32", "fp8")


def ask() -> tuple[Calibration, Plans]:
    """Show the choices and give what the run teaches with the plans for them."""
    learnt = wait(data.ask_calibration(state.current().run))
    question = _question(learnt)
    return learnt, wait(data.ask_plans(question))


def said(learnt: Calibration, plans: Plans) -> None:
    """Say what stands behind the figures."""
    show(plan.basis(learnt, plans), "plan-basis", state.is_dark())


def choice(plans: Plans) -> str:
    """Name what was asked, to tell it from other questions."""
    return data.question_key(plans.question)


def _question(learnt: Calibration) -> Question:
    recorded = learnt.configuration
    devices, batch, device, dtype = st.columns(4)
    names = ("as recorded", *(each.name for each in DEVICES))
    count = devices.number_input(
        "Devices", 1, MOST_DEVICES, state.number("devices", 1, MOST_DEVICES) or recorded.devices
    )
    size = batch.number_input(
        "Sequences a step", 1, MOST_SEQUENCES, state.number("batch", 1, MOST_SEQUENCES) or recorded.batch
    )
    name = device.selectbox("Device", names, names.index(state.word("device", names)))
    types = (recorded.dtype, *(each for each in DTYPES if each != recorded.dtype))
    kind = dtype.selectbox("Type", types, types.index(state.word("dtype", types)))
    state.keep("devices", None if count == recorded.devices else count)
    state.keep("batch", None if size == recorded.batch else size)
    state.keep("device", None if name == names[0] else name)
    state.keep("dtype", None if kind == types[0] else kind)
    machine = learnt.cluster if name == names[0] else of_device(name, kind)
    if name != names[0]:
        machine = replace(machine, efficiency=_efficiency())
    return Question(learnt.model, machine, int(count), int(size), kind)


def _efficiency() -> float:
    percent = state.number("efficiency", 1, 100) or 50
    chosen = st.slider("Of its peak that layers reach, %", 1, 100, percent)
    state.keep("efficiency", None if chosen == 50 else chosen)
    return chosen / 100
