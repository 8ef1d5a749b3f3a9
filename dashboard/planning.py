"""What is to be planned? The choices above the pages Plan and Sweep: all of them live in the address."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import theme
from dashboard.components.figure import figure
from dashboard.components.waiting import wait
from usp_prof.charts import draw
from usp_prof.charts.inputs import MemoryParts
from usp_prof.model.hardware import DEVICES
from usp_prof.planner.cluster import of_device
from usp_prof.planner.search import Plans, Question
from usp_prof.whatif.stages import footprints

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.calibration import Calibration

MOST_DEVICES = 4096
MOST_SEQUENCES = 65536
FILLS = {
    "parameter_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "gathered_bytes": "gathered weights",
    "activation_bytes": "activations",
    "logit_bytes": "logits",
}
"""What fills memory, in the order and the words in which it is shown."""
DTYPES = ("bf16", "fp16", "fp32", "fp8")


def ask() -> tuple[Calibration, Plans]:
    """Show the choices and give what the run teaches with the plans for them."""
    learnt = wait(data.ask_calibration(state.current().run))
    question = _question(learnt)
    return learnt, wait(data.ask_plans(question))


def said(learnt: Calibration, plans: Plans) -> None:
    """Say what stands behind the figures."""
    machine = plans.question.cluster
    basis = f"layers taken to reach {100 * machine.efficiency:.3g} % of the dense peak ({machine.basis})"
    if machine == learnt.cluster:
        basis += f"; the recorded run itself is predicted with an error of {learnt.error_fraction:+.1%}"
    st.caption(f"Predicted, never run: {basis}. {plans.tried:,} legal configurations, {len(plans.best):,} fit.")


def memory_chart(model: ModelEntry, configuration: Configuration, room_bytes: float, *, key: str) -> None:
    """Show what fills the memory of each pipeline rank."""
    found = footprints(model, configuration)
    labels = tuple(f"pipeline rank {rank}" for rank in range(len(found)))
    parts = tuple((label, tuple(float(each.parts()[part]) for each in found)) for part, label in FILLS.items())
    figure(draw(MemoryParts(labels, parts, room_bytes), theme(dark=state.is_dark())), key=key)


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
