"""The question of a plan: which model, on which devices, for which batch. A run answers most of it; else it is chosen.

All choices live in the address and are checked like any other input: a model is one of the known names or a shape of
numbers, never a path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from .. import state
from ..engine import (
    DEFAULT_PROFILE,
    DEFAULT_TRAINER,
    DEVICES,
    PROFILES,
    ModelEntry,
    Question,
    cluster_of_device,
    known_models,
    model_named,
)

if TYPE_CHECKING:
    from ..engine import Calibration

MOST_DEVICES = 16384
MOST_SEQUENCES = 65536
MOST_TOKENS = 1 << 20
DTYPES = ("bf16", "fp16", "fp32", "fp8")
AS_RECORDED = "as recorded"
OWN = "own shape"
USUAL_MODEL, USUAL_DEVICE, USUAL_DEVICES, USUAL_BATCH, USUAL_SEQUENCE = "Llama-3-8B", "H100 SXM", 64, 512, 8192
SHAPE = {
    "layers": ("Layers", 1, 1024, 32), "hidden": ("Hidden size", 64, 1 << 17, 4096), "heads": ("Heads", 1, 1024, 32),
    "kv_heads": ("Key/value heads", 1, 1024, 8), "ffn_hidden": ("Inner width", 64, 1 << 19, 14336),
    "vocab": ("Vocabulary", 256, 1 << 21, 128256), "experts": ("Experts", 0, 1024, 0),
    "experts_per_token": ("Experts of a token", 1, 64, 2),
}  # fmt: skip
"""Fields of a shape that is typed: label, least, most, usual."""


def ask_question(learnt: Calibration | None) -> Question:
    """Show what is chosen of model, devices, batch, device and type; what stays as it is, is no part of the address."""
    model_column, devices_column, batch_column, device_column, dtype_column = st.columns([1.7, 1.1, 1.1, 1.5, 1.3])
    with model_column:
        name = _model_name(learnt)
    recorded = learnt.configuration if learnt is not None else None
    with devices_column:
        devices = _whole("Devices", "devices", 1, MOST_DEVICES, recorded.devices if recorded else USUAL_DEVICES)
    with batch_column:
        batch = _whole("Sequences a step", "batch", 1, MOST_SEQUENCES, recorded.batch if recorded else USUAL_BATCH)
    with device_column:
        device = _device(learnt)
    usual = recorded.dtype if recorded is not None else DTYPES[0]
    dtypes = (usual, *(dtype for dtype in DTYPES if dtype != usual))
    dtype = dtype_column.selectbox("Type", dtypes, dtypes.index(state.word("dtype", dtypes)))
    state.keep("dtype", None if dtype == usual else dtype)
    model = _model(name, learnt)
    if learnt is not None and device == AS_RECORDED:
        return Question(model, learnt.cluster, devices, batch, dtype, profile=learnt.profile)
    known = cluster_of_device(device, dtype)
    habits_column, efficiency_column = st.columns(2)
    with efficiency_column:
        cluster = replace(known, efficiency=_efficiency(known.efficiency))
    with habits_column:
        profile = DEFAULT_PROFILE if learnt is not None else PROFILES[_habits()]
    return Question(model, cluster, devices, batch, dtype, profile=profile)


def _model_name(learnt: Calibration | None) -> str:
    """Choose whose model it is: the recorded one, a known name, or a shape."""
    usual = AS_RECORDED if learnt is not None else USUAL_MODEL
    names = (usual, *(name for name in (*known_models(), OWN) if name != usual))
    name: str = st.selectbox(
        "Model", names, names.index(state.word("model", names)), help="type to search, or choose own shape"
    )
    state.keep("model", None if name == usual else name)
    return name


def _model(name: str, learnt: Calibration | None) -> ModelEntry:
    """Give the model; of one that was not recorded ask for the length of a sequence, and for a shape of its own."""
    if learnt is not None and name == AS_RECORDED:
        return learnt.model
    sequence = _whole("Tokens of a sequence", "sequence", 1, MOST_TOKENS, USUAL_SEQUENCE)
    return _own_shape(sequence) if name == OWN else model_named(name, sequence)


def _own_shape(sequence: int) -> ModelEntry:
    """Ask for a shape, field by field."""
    sizes = {}
    for place, (field, (label, least, most, usual)) in zip(st.columns(4) * 2, SHAPE.items(), strict=True):
        with place:
            sizes[field] = _whole(label, field, least, most, usual)
    experts = sizes["experts"]
    return ModelEntry(
        **{
            field: sizes[field] for field in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "experts")
        },
        head_dim=max(sizes["hidden"] // sizes["heads"], 1),
        sequence=sequence,
        experts_per_token=min(sizes["experts_per_token"], experts) if experts else 0,
        expert_ffn_hidden=sizes["ffn_hidden"] if experts else 0,
    )


def _device(learnt: Calibration | None) -> str:
    known = tuple(device.name for device in DEVICES)
    usual = AS_RECORDED if learnt is not None else USUAL_DEVICE
    names = (usual, *(name for name in known if name != usual))
    name: str = st.selectbox("Device", names, names.index(state.word("device", names)))
    state.keep("device", None if name == usual else name)
    return name


def _habits() -> str:
    """Ask whose measured habits to predict with."""
    names = (DEFAULT_TRAINER, *(name for name in sorted(PROFILES) if name != DEFAULT_TRAINER))
    name: str = st.selectbox("Trainer's habits", names, names.index(state.word("habits", names)))
    state.keep("habits", None if name == names[0] else name)
    return name


def _efficiency(measured: float) -> float:
    """Ask for the share of its peak that a device reaches, 0..1."""
    usual = round(100 * measured)
    percent = state.number("efficiency", 1, 100) or usual
    chosen = st.slider("Of its peak that a large matrix product reaches, %", 1, 100, percent)
    state.keep("efficiency", None if chosen == usual else chosen)
    return measured if chosen == usual else chosen / 100


def _whole(label: str, name: str, least: int, most: int, usual: int) -> int:
    wanted = state.number(name, least, most)
    chosen = int(st.number_input(label, least, most, usual if wanted is None else wanted))
    state.keep(name, None if chosen == usual else chosen)
    return chosen
