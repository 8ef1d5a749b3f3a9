"""Plans as sections: the configurations that fit, and one of them in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.charts.inputs import MemoryParts, PlanPoints
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.answers.one_plan import memory_chart
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.launch import command as launch_command
from usp_prof.extras.planner.launch import refusal as refusal_by
from usp_prof.extras.planner.memory import footprints_of_ranks as memory_of_ranks
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.extras.planner.profiles import Profile
from usp_prof.extras.planner.question import Question, not_modelled
from usp_prof.extras.planner.search import EQUAL, Plans, speed_class
from usp_prof.model.configuration import Configuration
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.document import Chart, DataTable, KeyFigure, KeyFigures, Section, Text, data_table
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    import pandas as pd


ROWS = 20
"""Plans that the report lists."""


def sections(calibration: Calibration | None, plans: Plans, chosen: Plan | None, trainer: str) -> tuple[Section, ...]:
    """Build the plans, and the chosen one in detail if anything fits."""
    if chosen is None:
        return (Section("plan", "Plan", (basis(calibration, plans), Text(nothing_fits(plans)))),)
    if calibration is not None and is_doubtful(calibration, plans.question):
        blocks = (Text(doubt(calibration)), basis(calibration, plans), ordered(plans, ROWS))
        return (Section("plan", f"Plan: {question_text(plans)}", blocks),)
    every = Section(
        "plan",
        f"Plan: {question_text(plans)}",
        (
            basis(calibration, plans),
            Chart("Speed over memory", points(plans, calibration)),
            plans_table(plans.best, ROWS),
        ),
    )
    return every, single_plan(plans, chosen, trainer)


def verdict(calibration: Calibration | None, plans: Plans, trainer: str) -> str:
    """Describe the fastest configuration that a trainer can start, or the fastest of all if it can start none."""
    if not plans.best:
        return nothing_fits(plans)
    place, _ = startable(plans, trainer)
    best = plans.best[max(place, 0)]
    text = f"{in_words(best.configuration)}: "
    has_times = not is_doubtful(calibration, plans.question)
    if has_times:
        text += f"{quantity(best.step_ns, Unit.NS)} per step, "
    text += f"fits in {quantity(best.footprint.total_bytes, Unit.BYTES)} per device"
    text += f", the fastest that {trainer} can start" if place > 0 else f", the fastest of {plans.fitting:,} plans"
    recorded = recorded_plan(calibration, plans.question)
    if has_times and recorded is not None:
        faster = recorded.step_ns / max(best.step_ns, 1)
        text += f". The recorded configuration takes {quantity(faster, Unit.RATIO)} as long"
        text += f" (predicted: {quantity(recorded.step_ns, Unit.NS)})"
    return f"{text}."


def not_startable(plans: Plans, trainer: str) -> str:
    """Describe the faster plans that a trainer cannot start, with the reason for the fastest; empty without one."""
    place, refusal = startable(plans, trainer)
    if not plans.best or not place:
        return ""
    if place < 0:
        return f"{trainer} can start none of the plans: {refusal}."
    if place == 1:
        return f"{trainer} cannot start the one faster plan: {refusal}."
    return f"{trainer} cannot start {place} faster plans (the fastest: {refusal})."


_AXES = {"dp": "data", "cp": "context", "tp": "tensor", "pp": "pipeline", "ep": "expert"}


def in_words(configuration: Configuration) -> str:
    """Return a configuration in words: "4-way data, 2-way tensor parallel, ZeRO-2"."""
    axes = [f"{size}-way {_AXES[axis]}" for axis, size in configuration.degrees().items() if size > 1]
    # The rest of the short form: micro-batches, ZeRO, schedule, recomputation.
    _, micro_batches, *settings = str(configuration).split(", ")
    count, _, size = micro_batches.partition("x")
    batches = f"{count} micro-batches of {size}" if count != "1" else ""
    return ", ".join(filter(None, [f"{', '.join(axes)} parallel" if axes else "1 device", *settings, batches]))


def sentence(plan: Plan, room_bytes: float, *, with_step: bool = True) -> str:
    """Describe one plan: its configuration, its step unless that is doubtful, and whether it fits into a device."""
    step = f"{quantity(plan.step_ns, Unit.NS)} per step, " if with_step else ""
    need = f"needs {quantity(plan.footprint.total_bytes, Unit.BYTES)}"
    if isfinite(room_bytes):
        need = f"{'fits' if plan.fits else 'does not fit'}, {need} of {quantity(room_bytes, Unit.BYTES)}"
    return f"{in_words(plan.configuration)}: {step}{need} per device."


def startable(plans: Plans, trainer: str) -> tuple[int, str]:
    """Return the index of the fastest plan that a trainer can start (-1: none), and why it cannot start the first."""
    first_refusal = ""
    for place, plan in enumerate(plans.best):
        refusal = refusal_by(trainer, plans.question.model, plan.configuration)
        if not refusal:
            return place, first_refusal
        first_refusal = first_refusal or refusal
    return -1, first_refusal


def is_doubtful(calibration: Calibration | None, question: Question) -> bool:
    """Return whether the run's own step is predicted too badly to show more than the order of plans."""
    return calibration is not None and question.cluster == calibration.cluster and not calibration.is_close


def doubt(calibration: Calibration, shown: str = "the order of the plans") -> str:
    """Describe the error on the recorded step, and what is shown despite it."""
    off = f"{100 * calibration.error_fraction:+z.0f}%"
    return (
        f"The prediction of the recorded step is off by {off}. Predicted times cannot be trusted, so only {shown} is "
        "shown."
    )


def question_text(plans: Plans) -> str:
    """Return what is planned for."""
    question = plans.question
    return f"{question.devices} x {question.cluster.device}, {question.batch} sequences per step"


def basis(calibration: Calibration | None, plans: Plans) -> Text:
    """Build the note on the basis of the figures."""
    machine = plans.question.cluster
    basis_text = (
        f"Large matrix products are assumed to reach {100 * machine.efficiency:.3g}% of the peak ({machine.basis})."
    )
    if calibration is not None and machine == calibration.cluster:
        step = quantity(calibration.measured_step_ns, Unit.NS)
        basis_text += (
            f" The mean rank step of the recorded run ({step}) is predicted with an error of "
            f"{100 * calibration.error_fraction:+z.1f}%."
        )
    left_out = "".join(f" Not modeled: {omission}." for omission in not_modelled(plans.question.model))
    return Text(
        f"Predicted, not measured. {basis_text} {counts(plans)}.{left_out}",
        quiet=True,
    )


def counts(plans: Plans) -> str:
    """Return the numbers of configurations tried, and of those ranked."""
    tried = counted(plans.tried, "legal configuration")
    return f"{plans.fitting:,} of {tried} fit and recompute no more than needed"


def nothing_fits(plans: Plans) -> str:
    """Describe the need of the configuration with the least memory."""
    need, room = (quantity(size, Unit.BYTES) for size in (plans.leanest_bytes, plans.question.cluster.room_bytes))
    return f"Nothing fits: every configuration needs at least {need}, and the limit is {room}."


def points(plans: Plans, calibration: Calibration | None = None, labeled: int = 0) -> PlanPoints:
    """Return every plan that fits as a point; last the recorded configuration, if its batch is planned.

    `labeled` is the place of the plan whose configuration labels its point.
    """
    recorded = recorded_plan(calibration, plans.question)
    ran = [recorded] if recorded is not None else []
    front = {plan.configuration for plan in plans.pareto()}
    shown = [*plans.best, *ran]
    return PlanPoints(
        tuple(str(plan.configuration) for plan in shown),
        np.array([plan.tokens_per_second for plan in shown], float),
        np.array([plan.footprint.total_bytes for plan in shown], float),
        np.array([plan.mfu for plan in shown], float),
        np.array([*(plan.configuration in front for plan in plans.best), *(False for _ in ran)], bool),
        plans.question.cluster.room_bytes,
        len(plans.best) if ran else -1,
        labeled,
    )


def recorded_plan(calibration: Calibration | None, question: Question) -> Plan | None:
    """Return the prediction of the recorded configuration if plans are for its model, devices and batch."""
    if calibration is None:
        return None
    c = calibration.configuration
    recorded = (calibration.model, calibration.cluster, c.devices, c.batch)
    is_same = recorded == (question.model, question.cluster, question.devices, question.batch)
    return calibration.prediction if is_same else None


def plans_table(plans: Sequence[Plan], rows: int) -> DataTable:
    """Build the table of the fastest plans."""
    columns = {
        "configuration": None, "step": Unit.NS, "tokens/s": Unit.COUNT, "MFU": Unit.FRACTION, "memory": Unit.BYTES,
        "bubble": Unit.FRACTION, "exposed": Unit.FRACTION,
    }  # fmt: skip
    cells = [
        (
            str(plan.configuration), plan.step_ns, plan.tokens_per_second, plan.mfu, plan.footprint.total_bytes,
            plan.bubble_fraction, sum(plan.exposed_ns.values()) / plan.step_ns,
        )
        for plan in plans
    ]  # fmt: skip
    return data_table("Fastest first", columns, cells, most=rows)


def ordered(plans: Plans, rows: int) -> DataTable:
    """Build the table of plans by order, with the step of each class of equally fast plans relative to the first."""
    columns = {"place": None, "configuration": None, "step vs. first": Unit.RATIO, "memory": Unit.BYTES}
    first = speed_class(plans.best[0])
    lines = [
        (place, str(plan.configuration), EQUAL ** (speed_class(plan) - first), plan.footprint.total_bytes)
        for place, plan in enumerate(plans.best[:rows], start=1)
    ]
    return replace(data_table("Order of the plans", columns, lines), more=plans.fitting - len(lines))


def single_plan(plans: Plans, plan: Plan, trainer: str) -> Section:
    """Build one plan: its figures, the memory of each pipeline rank, and its command."""
    model, room = plans.question.model, plans.question.cluster.room_bytes
    command, reason = command_or_reason(trainer, plans.question, plan.configuration)
    return Section(
        "plan-one",
        f"One plan: {plan.configuration}",
        (
            figures(plan),
            Chart(
                "Predicted memory per rank, by part",
                memory(model, plan.configuration, room, plans.question.profile),
            ),
            Text(command or reason),
        ),
    )


def command_or_reason(trainer: str, question: Question, configuration: Configuration) -> tuple[str, str]:
    """Return the command of a plan and an empty reason, or an empty command and the reason why there is none."""
    if reason := refusal_by(trainer, question.model, configuration):
        return "", f"{trainer} cannot run {configuration}: {reason}"
    return launch_command(trainer, question.model, configuration, question.cluster.devices_per_host), ""


def figures(plan: Plan) -> KeyFigures:
    """Build the key figures of one plan."""
    return KeyFigures(
        (
            KeyFigure("step", plan.step_ns, Unit.NS),
            KeyFigure("tokens", plan.tokens_per_second, Unit.PER_SECOND),
            KeyFigure(f"MFU ({plan.convention})", plan.mfu, Unit.FRACTION),
            KeyFigure("bubble", plan.bubble_fraction, Unit.FRACTION),
            KeyFigure("memory", plan.footprint.total_bytes, Unit.BYTES),
        )
    )


def memory(model: ModelEntry, configuration: Configuration, room_bytes: float, profile: Profile) -> MemoryParts:
    """Return the parts of memory of each pipeline rank."""
    return memory_chart(memory_of_ranks(model, configuration, profile), room_bytes)


def predicted_memory(calibration: Calibration) -> Section:
    """Build the planner's prediction for the recorded configuration."""
    note = f"Predicted by the planner for {in_words(calibration.configuration)}. Plan shows other configurations."
    chart = memory(calibration.model, calibration.configuration, calibration.cluster.room_bytes, calibration.profile)
    return Section("memory-predicted", "Memory, predicted", (Text(note, quiet=True), Chart("", chart)))


def settings_of(c: Configuration) -> dict[str, int | str]:
    """Return the degrees and the other settings of a configuration, by the names of the command line."""
    return {
        **c.degrees(),
        "zero": c.zero,
        "micro_batch": c.micro_batch,
        "micro_batches": c.micro_batches,
        "schedule": c.schedule if c.pp > 1 else "",
        "recompute": str(c.recompute),
        "recompute_layers": c.recompute_layers,
        "recompute_group": c.recompute_group,
        "recompute_modules": " ".join(c.recompute_modules),
        "offload_layers": c.offload_layers,
        "offload": str(c.offload),
    }


def frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """Return plans with all their raw values."""
    import pandas as pd  # noqa: PLC0415 - only for those who ask for a frame

    return pd.DataFrame(
        [
            {
                "configuration": str(plan.configuration),
                **settings_of(plan.configuration),
                "step_ns": round(plan.step_ns),
                "tokens_per_second": plan.tokens_per_second,
                "mfu_fraction": plan.mfu,
                "bubble_fraction": plan.bubble_fraction,
                "exposed_ns": round(sum(plan.exposed_ns.values())),
                "memory_bytes": plan.footprint.total_bytes,
            }
            for plan in plans
        ]
    )
