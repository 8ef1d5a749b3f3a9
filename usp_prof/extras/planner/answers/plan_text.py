"""Output of `usp-prof plan`: plans as text, as JSON and, row by row of a table, as CSV."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from math import isfinite
from operator import attrgetter
from typing import Any

from usp_prof.cli.wrapping import wrapped, wrapped_command
from usp_prof.extras.planner.answers.one_plan import bars, memory_parts, step_parts
from usp_prof.extras.planner.answers.plan import command_or_reason, settings_of
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.choice import runners_up
from usp_prof.extras.planner.launch import refusal_of_layout, refusal_of_model
from usp_prof.extras.planner.memory import SAFE_PROBABILITY
from usp_prof.extras.planner.predict import Prediction
from usp_prof.extras.planner.question import Question, not_modelled
from usp_prof.extras.planner.search import Plans
from usp_prof.extras.planner.shortfall import shortfall_of
from usp_prof.extras.planner.stalls import LIKELY
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted, csv_cell
from usp_prof.report.format import quantity
from usp_prof.report.writers.json_text import answer_text


def as_text(plans: Plans, calibration: Calibration | None, trainer: str, top: int, width: int) -> str:
    """Format plans for a terminal of this width; commands continue over lines with backslashes."""
    lines = [*_assumptions(plans.question, calibration), *_counts(plans, trainer)]
    if not plans.best:
        return wrapped("\n".join([*lines, *_missing_memory(plans)]), width, hanging=2)
    if len(plans.best) == 1:
        lines += ["", *_single_plan(plans.best[0], plans.question), *_ruled_out(plans)]
        return f"{wrapped(chr(10).join(lines), width, hanging=2)}\n{_start(plans, trainer, 'command', width)}\n"
    reasons = wrapped("\n".join(why(plans)), width, hanging=2)
    blocks = [
        wrapped("\n".join(lines), width, hanging=2),
        _table(plans.best[:top], width),
        *([reasons] if reasons else []),
        _start(plans, trainer, "command of the first plan", width),
    ]
    return "\n".join(blocks) + "\n"


def _assumptions(question: Question, calibration: Calibration | None) -> list[str]:
    """Name what is planned for, and what is assumed about the machine and the trainer."""
    machine = question.cluster
    batch = f"{question.batch} sequences of {question.model.sequence} tokens"
    lines = [
        f"{question.devices} x {machine.device}, {batch} per step",
        f"assumption: nodes of {machine.devices_per_node}, network {machine.network_rate / 1e9:g} GB/s per device",
    ]
    if calibration is None or question.profile is not calibration.profile:  # the run was on another device
        efficiency = f"{100 * machine.efficiency:.3g}% of the dense peak ({machine.basis})"
        lines += [f"assumption: large matrix products reach {efficiency}", f"trainer: {question.profile.name}"]
    else:
        lines.append(f"speed of compute, links and overlap: as in {machine.basis}")
        lines.append(f"check: the step of that run is predicted with an error of {calibration.error_fraction:+z.1%}")
    if isfinite(machine.room_bytes):
        lines.append(f"memory that tensors can fill: {quantity(machine.room_bytes, Unit.BYTES)} per device")
    return lines


def _counts(plans: Plans, trainer: str) -> list[str]:
    """Count the configurations tried, refused and fitting, and name what is not modeled."""
    lines = [counted(plans.tried, "legal configuration")]
    if plans.refused:
        lines.append(refusals(plans, trainer))
    if len(plans.best) > 1:
        lines.append(f"{plans.fitting:,} fit in memory and recompute no more than needed")
    return lines + [f"not modeled: {omission}" for omission in not_modelled(plans.question.model)]


def _missing_memory(plans: Plans) -> list[str]:
    """Name the missing memory, and what would fit."""
    room_bytes = plans.question.cluster.room_bytes
    need, room = (quantity(size, Unit.BYTES) for size in (plans.leanest_bytes, room_bytes))
    shortfall = shortfall_of(plans.question, plans.leanest_bytes)
    return [
        f"nothing fits: every configuration needs at least {need} per device, and tensors can fill {room}",
        f"missing: {quantity(shortfall.missing_bytes, Unit.BYTES)} per device",
        *(f"would fit with {change}" for change in shortfall.changes),
    ]


def _table(fastest: Sequence[Prediction], width: int) -> str:
    """Format the fastest plans as a table, with the meaning of its words below."""
    head = f"{'':3}{'step':>8} {'tokens/s':>10} {'MFU':>5} {'memory':>8} {'bubble':>6} {'exposed':>7}  configuration"
    rows = [f"{place:2} {_row(plan, width)}" for place, plan in enumerate(fastest, start=1)]
    key = _KEY
    if any(plan.fit_probability < SAFE_PROBABILITY for plan in fastest):
        key += f"\ntight: fits with a probability of 50% to {SAFE_PROBABILITY:.0%}"
    return "\n".join([head, *rows, textwrap.indent(wrapped(key, width - 2, hanging=2), "  ")])


def why(plans: Plans) -> list[str]:
    """Explain the choice: settings that rule plans out, runners-up, plans with less memory."""
    first, question = plans.best[0], plans.question
    lines = [*_ruled_out(plans), "compared with the first plan:"]
    for other in runners_up(plans.best):
        line = f"  {other.plan.configuration}: {other.longer_fraction:+z.1%}"
        if other.turned_by and other.turned_at >= LEAST_FACTOR:
            line += f"; it would be first if {other.turned_by} took {other.turned_at:.2f}x as long as predicted"
        lines.append(line + (" (within the 80% interval of the first plan)" if other.within(first) else ""))
    if first.host_bytes:
        lines.append(f"  host memory of the first plan: {on_host(first, question)}")
    leaner = [plan for plan in plans.pareto() if plan.footprint.total_bytes < first.footprint.total_bytes]
    for plan in leaner[:MOST_LEANER]:
        speed, need = first.step_ns / plan.step_ns, quantity(plan.footprint.total_bytes, Unit.BYTES)
        lines.append(f"  less memory: {need} at {speed:.0%} of the speed: {plan.configuration}")
    return lines if lines[-1].startswith(" ") else lines[:-1]


def _ruled_out(plans: Plans) -> list[str]:
    """Name settings with which nothing fits."""
    if not plans.barred:
        return []
    lines = [f"settings with which nothing fits in {quantity(plans.question.cluster.room_bytes, Unit.BYTES)}:"]
    for barred in plans.barred[:MOST_BARRED]:
        need = quantity(barred.leanest_bytes, Unit.BYTES)
        tried = counted(barred.tried, "configuration")
        lines.append(f"  {barred.knob}={barred.value}: the smallest of {tried} needs {need}")
    more = len(plans.barred) - MOST_BARRED
    return [*lines, f"  and {more} more"] if more > 0 else lines


def refusals(plans: Plans, trainer: str) -> str:
    """Return how many configurations a trainer cannot run, and the most frequent reasons."""
    shown = plans.refused[:MOST_REASONS]
    if plans.best and refusal_of_layout(trainer, plans.question.model, plans.best[0].configuration):
        reasons = "; ".join(refused.reason for refused in shown)
        return f"{_trainer_name(trainer)} cannot run any plan that fits, so all are listed: {reasons}"
    reasons = "; ".join(f"{refused.reason} ({refused.count:,})" for refused in shown)
    more = len(plans.refused) - len(shown)
    rest = f"; {counted(more, 'more reason')}" if more else ""
    count = sum(refused.count for refused in plans.refused)
    return f"{_trainer_name(trainer)} cannot run {count:,} of them: {reasons}{rest}"


def _trainer_name(trainer: str) -> str:
    """Return the name of a trainer in a sentence. Ours has the name of this program."""
    return "our trainer" if trainer == "usp-prof" else trainer


def _start(plans: Plans, trainer: str, heading: str, width: int) -> str:
    """Return the command of the first plan below a heading, or why there is none."""
    question = plans.question
    command, reason = command_or_reason(trainer, question, plans.best[0].configuration)
    if reason:
        # For several plans, the reasons are in the list of refusals, except that there is no command for the model.
        of_several = refusal_of_model(trainer, question.model) or f"{_trainer_name(trainer)} cannot run these plans"
        shown = reason if len(plans.best) == 1 else of_several
        return wrapped(f"no command: {shown}", width, hanging=2).rstrip("\n")
    return f"{heading}:\n{wrapped_command(command, width)}"


def _single_plan(plan: Prediction, question: Question) -> list[str]:
    """Format one configuration: step and memory by part, with 80% intervals."""
    device = question.cluster
    low, high = (quantity(value, Unit.NS) for value in (plan.step_low_ns, plan.step_high_ns))
    lean, full = (quantity(value, Unit.BYTES) for value in (plan.memory_low_bytes, plan.memory_high_bytes))
    speed = f"{plan.tokens_per_second:,.0f} tokens/s, MFU {plan.mfu:.1%} ({plan.convention})"
    lines = [str(plan.configuration), f"step {quantity(plan.step_ns, Unit.NS)} (80%: {low} to {high}), {speed}"]
    lines += bars(step_parts(plan), plan.step_ns)
    lines += [stalls(plan)] if plan.stall_fraction >= LEAST_STALLS else []
    room = quantity(device.room_bytes, Unit.BYTES)
    lines.append(
        f"memory {quantity(plan.footprint.total_bytes, Unit.BYTES)} (80%: {lean} to {full})"
        f" of {room}; fits with probability {plan.fit_probability:.0%}"
    )
    lines += bars(memory_parts(plan.footprint, ""), device.room_bytes)
    if plan.host_bytes:
        lines.append(f"host memory {on_host(plan, question)}")
    return lines


def on_host(plan: Prediction, question: Question) -> str:
    """Return the node memory of an offloaded optimizer or of offloaded activations."""
    devices = min(question.cluster.devices_per_node, plan.configuration.devices)
    node_memory = quantity(plan.host_bytes * devices, Unit.BYTES)
    content = "activations" if plan.configuration.offload_layers else "the optimizer"
    return f"{node_memory} per node of {devices} for {content}; its time is from data sheets, not measured"


def stalls(plan: Prediction) -> str:
    """Return the share of such runs that stall."""
    share = f"  {plan.stall_fraction:.0%} of such runs stalled on sends between nodes"
    return (
        f"{share}; the step includes the stall"
        if plan.stall_fraction > LIKELY
        else f"{share}; the step does not include it"
    )


LEAST_STALLS = 0.01
LEAST_FACTOR = 1.005
"""Minimum factor that is stated, because steps within 0.5% count as equal."""
MOST_BARRED, MOST_LEANER, MOST_REASONS = 4, 3, 3
"""Maximum number of lines of each kind in an explanation."""


_KEY = (
    "4x2 in a configuration means 4 micro-batches of 2 sequences\n"
    "steps within 0.5% count as equal: simpler plans come first (fewer axes, more dp, a lower ZeRO stage), "
    "then less memory; tight plans come last"
)
ROW = 54
"""Width of a row before its configuration."""


def _row(plan: Prediction, width: int) -> str:
    exposed = sum(plan.exposed_ns.values()) / plan.step_ns
    step, memory = quantity(plan.step_ns, Unit.NS), quantity(plan.footprint.total_bytes, Unit.BYTES)
    under = f"\n{'':{ROW}}"
    name = str(plan.configuration) + (" (tight)" if plan.fit_probability < SAFE_PROBABILITY else "")
    name_lines = textwrap.wrap(name, max(width - ROW, 20), break_long_words=False)
    return (
        f"{step:>8} {plan.tokens_per_second:10,.0f} {plan.mfu:5.1%} {memory:>8}"
        f" {plan.bubble_fraction:6.1%} {exposed:7.1%}  {under.join(name_lines)}"
    )


def as_json(plans: Plans, calibration: Calibration | None, trainer: str, top: int) -> str:
    """Format plans as JSON."""
    front = {plan.configuration for plan in plans.pareto()}
    fields = {
        "tried": plans.tried,
        "fitting": plans.fitting,
        "leanest_bytes": plans.leanest_bytes,
        "calibration_error_fraction": calibration.error_fraction if calibration is not None else None,
        "not_modelled": list(not_modelled(plans.question.model)),
        "barred": [asdict(barred) | {"leanest_bytes": round(barred.leanest_bytes)} for barred in plans.barred],
        "plans": [_plain(plan, plans, trainer) | {"pareto": plan.configuration in front} for plan in plans.best[:top]],
    }
    return answer_text("plan", fields)


def _plain(plan: Prediction, plans: Plans, trainer: str) -> dict[str, Any]:
    c = plan.configuration
    command, reason = command_or_reason(trainer, plans.question, c)
    return {
        **settings_of(c),
        **{name: getattr(c, name) for name in ("chunks", "sequence_parallel", "expert_overlap", "replicas")},
        **{name: round(getattr(plan, name)) for name in ROUNDED},
        **{name: getattr(plan, name) for name in EXACT},
        "trainer": plans.question.profile.name,
        "exposed_ns": {axis: round(time) for axis, time in plan.exposed_ns.items()},
        "memory_bytes": plan.footprint.parts(),
        "command": command,
        "refused": reason,
    }


ROUNDED = (
    "step_ns", "step_low_ns", "step_high_ns", "expected_step_ns", "memory_low_bytes", "memory_high_bytes", "host_bytes",
)  # fmt: skip
EXACT = ("fit_probability", "stall_fraction", "tokens_per_second", "mfu", "convention", "bubble_fraction")
"""Fields of a prediction in JSON, as whole numbers and as they are."""


def _fields(*names: str) -> dict[str, Callable[[Prediction], float]]:
    return {name: attrgetter(name) for name in names}


def _exposed(axis: str) -> Callable[[Prediction], float]:
    return lambda plan: plan.exposed_ns.get(axis, 0.0)


FIGURES: dict[str, Callable[[Prediction], float]] = {
    **_fields("step_ns", "step_low_ns", "step_high_ns", "tokens_per_second"),
    "tokens_per_second_low": lambda p: p.tokens_per_second * p.step_ns / p.step_high_ns,
    "tokens_per_second_high": lambda p: p.tokens_per_second * p.step_ns / p.step_low_ns,
    "tokens_per_second_device": attrgetter("tokens_per_device"),
    "mfu_fraction": attrgetter("mfu"),
    "memory_bytes": attrgetter("footprint.total_bytes"),
    **_fields("memory_low_bytes", "memory_high_bytes", "fits", "fit_probability", "compute_ns"),
    **{f"exposed_{axis}_ns": _exposed(axis) for axis in ("tp", "dp", "cp", "ep")},
    **_fields("bubble_ns", "optimizer_ns", "fixed_ns", "stall_fraction", "expected_step_ns", "host_bytes"),
}
"""Output columns of a table."""
PLACES = {"mfu_fraction": 5, "fit_probability": 3, "stall_fraction": 3}
"""Decimal places of the written figures; others are whole numbers."""
GIVEN = (*FIGURES, "error")
"""Columns added to a table."""


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, str]], predictions: Sequence[Prediction | str]) -> str:
    """Format a table's rows with the columns of `GIVEN` added; input columns with these names are replaced."""
    input_columns = [column for column in columns if column not in GIVEN]
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in (*input_columns, *GIVEN)])
    for row, prediction in zip(rows, predictions, strict=True):
        writer.writerow(
            [csv_cell(text) for text in (*(row[column] for column in input_columns), *_figure_cells(prediction))]
        )
    return file.getvalue()


def _figure_cells(prediction: Prediction | str) -> list[str]:
    """Return the cells of `GIVEN`; for a rejected row only the reason."""
    if isinstance(prediction, str):
        return [""] * len(FIGURES) + [prediction]
    return [*(f"{figure(prediction):.{PLACES.get(name, 0)}f}" for name, figure in FIGURES.items()), ""]
