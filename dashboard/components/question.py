"""Inputs of a plan (model, devices, batch), and the prediction for one configuration with sliders.

A run provides most inputs; without one they are chosen. All choices are in the address and are checked like any other
input. A model is a known name or a shape of numbers, never a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import streamlit as st

from usp_prof import UspProfError
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.answers import one_plan as one_plan_answer
from usp_prof.extras.planner.answers import plan as plan_answer
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.cluster import cluster_of as cluster_of_device
from usp_prof.extras.planner.memory import footprints_of_ranks as memory_of_ranks
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.extras.planner.predict import predict as predict_plan
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER, PROFILES
from usp_prof.extras.planner.question import Question
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.hardware import DEVICES
from usp_prof.model.hardware import find as device_named
from usp_prof.model.known_models import model_named, model_names
from usp_prof.model.metric import Unit
from usp_prof.report.document import KeyFigure, KeyFigures
from usp_prof.report.format import quantity
from usp_prof.report.run_facts import RunFacts
from usp_prof.schedule import Schedule

from .. import data, state
from ..work import wait
from .blocks import show, verdict
from .choices import choose_word, slide, slide_power, type_integer, usual_first

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator


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
    "experts_per_token": ("Experts per token", 1, 64, 2),
}  # fmt: skip
"""Fields of a shape that is typed: label, least, most, usual."""


def calibration_of(index: int) -> tuple[Calibration | None, str]:
    """Return the planner's calibration from a run, or why the run provides none."""
    try:
        return wait(data.ask_calibration(index)), ""
    except UspProfError as error:
        return None, error.message


def ask_question(calibration: Calibration | None, facts: RunFacts | None = None) -> Question:
    """Show the choices of model, devices, batch, device and type, and return them; defaults are not in the address.

    `facts` provide the devices of a run whose model is unknown.
    """
    model_column, devices_column, batch_column, device_column, dtype_column = st.columns([1.7, 1.1, 1.1, 1.5, 1.3])
    with model_column:
        names = usual_first(AS_RECORDED if calibration is not None else USUAL_MODEL, (*model_names(), OWN))
        name = choose_word("Model", "model", names, help="type to search, or enter your own shape")
    recorded = calibration.configuration if calibration is not None else None
    known_devices = min((facts.world_size or len(facts.ranks)) if facts else USUAL_DEVICES, MOST_DEVICES)
    with devices_column:
        devices = type_integer("Devices", "devices", 1, MOST_DEVICES, recorded.devices if recorded else known_devices)
    with batch_column:
        batch = type_integer("Batch size", "batch", 1, MOST_SEQUENCES, recorded.batch if recorded else USUAL_BATCH)
    with device_column:
        device = _device(calibration, facts)
    known_dtypes = tuple(dtype for dtype in DTYPES if device == AS_RECORDED or _has_peak(device, dtype))
    usual = known_dtypes[0]
    if recorded is not None and (device == AS_RECORDED or recorded.dtype in known_dtypes):
        usual = recorded.dtype
    dtype = choose_word("Type", "dtype", usual_first(usual, known_dtypes), place=dtype_column)
    sequence_column, habits_column, efficiency_column = st.columns(3)
    if calibration is not None and name == AS_RECORDED:
        model = calibration.model
    else:
        with sequence_column:
            sequence = type_integer("Tokens per sequence", "sequence", 1, MOST_TOKENS, USUAL_SEQUENCE)
        model = _own_shape(sequence) if name == OWN else model_named(name, sequence)
    if calibration is not None and device == AS_RECORDED:
        return Question(model, calibration.cluster, devices, batch, dtype, profile=calibration.profile)
    chosen_cluster = cluster_of_device(device, dtype)
    with efficiency_column:
        cluster = replace(chosen_cluster, efficiency=_efficiency(chosen_cluster.efficiency))
    with habits_column:
        trainers = usual_first(DEFAULT_TRAINER, tuple(sorted(PROFILES)))
        habits = DEFAULT_TRAINER if calibration is not None else choose_word("Trainer behavior", "habits", trainers)
    profile = PROFILES[habits]
    return Question(model, cluster, devices, batch, dtype, profile=profile)


def _own_shape(sequence: int) -> ModelEntry:
    """Ask for a shape, field by field."""
    sizes = {}
    for place, (field, (label, least, most, usual)) in zip(st.columns(4) * 2, SHAPE.items(), strict=True):
        with place:
            sizes[field] = type_integer(label, field, least, most, usual)
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


def _device(calibration: Calibration | None, facts: RunFacts | None) -> str:
    """Choose a device; the default is the recorded one."""
    device_names = tuple(device.name for device in DEVICES)
    usual = AS_RECORDED
    if calibration is None:
        recorded_device = device_named(facts.devices[0]) if facts is not None and facts.devices else None
        usual = recorded_device.name if recorded_device is not None else USUAL_DEVICE
    return choose_word("Device", "device", usual_first(usual, device_names))


def _has_peak(device: str, dtype: str) -> bool:
    """Return whether the peak of a device is known for a type."""
    try:
        cluster_of_device(device, dtype)
    except UspProfError:
        return False
    return True


def _efficiency(measured: float) -> float:
    """Choose the share of its peak that a device reaches, 0..1."""
    usual = round(100 * measured)
    chosen = slide("Large matrix products reach, % of peak", "efficiency", tuple(range(1, 101)), usual)
    return measured if chosen == usual else chosen / 100


# One configuration with sliders. A prediction takes milliseconds, so the bars follow the sliders.

MOST_MICRO_BATCH = 64
SCHEDULES = tuple(str(schedule) for schedule in Schedule)
RECOMPUTES = tuple(str(kind) for kind in Recompute)


def draw_configuration(
    question: Question,
    usual: Configuration | None,
    heading: DeltaGenerator,
    ask_trainer: Callable[[], str],
    *,
    with_times: bool,
) -> None:
    """Show the prediction for one configuration above its sliders, which start at `usual`."""
    place = st.container()
    chosen = _chosen(question, usual)
    rule = chosen if isinstance(chosen, str) else broken_rule(question.model, chosen)
    if rule or isinstance(chosen, str):
        place.warning(state.plain(rule))
        return
    plan = predict_plan(question.model, chosen, question.cluster, question.convention, profile=question.profile)
    with heading:
        verdict(plan_answer.sentence(plan, question.cluster.room_bytes, with_step=with_times))
    with place:
        _show(question, plan, with_times=with_times)
    show_start(ask_trainer(), question, plan)


def show_start(trainer: str, question: Question, plan: Plan) -> None:
    """Show the command that starts a plan, or why this trainer cannot run it."""
    command, reason = plan_answer.command_or_reason(trainer, question, plan.configuration)
    if reason:
        st.info(state.plain(f"{reason}. Choose another plan or trainer."))
    else:
        st.code(command, language=None, wrap_lines=True)


def _chosen(question: Question, usual: Configuration | None) -> Configuration | str:
    """Read the sliders, or return why they are not compatible; dp takes the devices that the other axes leave."""
    devices = question.devices
    usual = usual or Configuration(zero=1)
    left, middle, right = st.columns(3)
    with left:
        tp = slide_power("Tensor parallel (tp)", "tp", devices, usual.tp)
        pp = slide_power("Pipeline parallel (pp)", "pp", devices, usual.pp)
        cp = slide_power("Context parallel (cp)", "cp", devices, usual.cp)
        experts = question.model.experts
        ep = slide_power("Expert parallel (ep)", "ep", experts, usual.ep) if experts else 1
    with middle:
        zero = slide("ZeRO stage", "zero", (0, 1, 2, 3), usual.zero)
        size = slide_power("Sequences per micro-batch", "micro", MOST_MICRO_BATCH, usual.micro_batch)
        chunks = slide("Stages per pipeline rank", "chunks", (1, 2, 4, 8), usual.chunks) if pp > 1 else 1
    with right:
        recompute = choose_word("Recompute", "recompute", usual_first(str(usual.recompute), RECOMPUTES))
        schedules = usual_first(str(usual.schedule), SCHEDULES)
        schedule = choose_word("Schedule", "schedule", schedules) if pp > 1 else "1f1b"
        on_off = ("on", "off") if usual.sequence_parallel else ("off", "on")
        sequence_parallel = choose_word("Sequence parallelism", "sp", on_off) == "on" if tp > 1 else True
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


def _show(question: Question, plan: Plan, *, with_times: bool) -> None:
    ranks = memory_of_ranks(question.model, plan.configuration, question.profile)
    fullest = one_plan_answer.fullest(ranks)
    total_bytes, room = ranks[fullest].total_bytes, question.cluster.room_bytes
    times = (
        KeyFigure("step", plan.step_ns, Unit.NS),
        KeyFigure("tokens", plan.tokens_per_second, Unit.PER_SECOND),
        KeyFigure(f"MFU ({plan.convention})", plan.mfu, Unit.FRACTION),
    )
    of_device = f"of {quantity(room, Unit.BYTES)}" if isfinite(room) else "of a device of unknown size"
    sizes = (
        KeyFigure("memory", total_bytes, Unit.BYTES, of_device),
        KeyFigure("data parallel (dp)", plan.configuration.dp, Unit.COUNT, "the devices that other axes leave"),
    )
    show(KeyFigures((*times, *sizes) if with_times else sizes), "one-figures")
    memory, time = st.columns(2)
    with memory:
        title = f"Memory of pipeline rank {fullest}, the fullest" if len(ranks) > 1 else "Memory per rank"
        show(one_plan_answer.memory_parts(ranks[fullest], title), "one-memory")
    if with_times:
        with time:
            show(one_plan_answer.step_parts(plan), "one-step")
        st.caption(state.plain(one_plan_answer.interval(plan, room)))
