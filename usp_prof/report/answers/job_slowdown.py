"""Job slowdown as a section and as JSON: the step compared with its ideal, and the parts of the loss."""

from __future__ import annotations

from collections.abc import Sequence

from usp_prof.model.edit import Edit
from usp_prof.model.finding import LEAST_LOSS
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.document import Block, KeyFigure, KeyFigures, Section, Text, data_table
from usp_prof.report.format import Cell, quantity
from usp_prof.report.writers.json_text import answer_text
from usp_prof.whatif.attribution import Part, Slowdown
from usp_prof.whatif.op_replay import JobSlowdown

TITLE = "Job slowdown: the step compared with an ideal run"
IDEAL = "all ranks perform like their peers"
NO_LOSS = "All ranks perform like their peers."
"""Text for a run without loss."""
WITHIN_ERROR = "The difference is within the replay's error of ±{}, so it is not attributed to ranks, axes or stages."
"""Text for a run whose loss may be an error of the replay."""

LEAST_SHARE = 0.005
"""Minimum share of the loss of a listed part."""
KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""Names of the kinds of pipeline actions."""


def section_of_run(slowdown: Slowdown) -> Section:
    """Build the job slowdown of a run, and the parts of its loss, largest first."""
    overall = slowdown.overall
    if overall.unknown:
        figure = KeyFigure("job slowdown", None, Unit.RATIO, f"unknown: {overall.unknown}")
        return Section("ideal", TITLE, (KeyFigures((figure,)),))
    blocks: list[Block] = [_figures(overall.step_ns, overall.ideal_ns)]
    if slowdown.replayed.which:
        blocks.append(Text(f"The ideal step is {slowdown.replayed.which}.", quiet=True))
    if not slowdown.parts:
        is_uncertain = overall.loss_fraction > LEAST_LOSS
        why = WITHIN_ERROR.format(quantity(overall.error_fraction, Unit.FRACTION)) if is_uncertain else NO_LOSS
        return Section("ideal", TITLE, (*blocks, Text(why)))
    parts = sorted(slowdown.parts, key=lambda part: -part.share)
    shown = [part for part in parts if part.share >= LEAST_SHARE]
    blocks.append(_parts([(_name(part), overall.step_ns - part.step_ns, part.share) for part in shown]))
    if hidden := len(parts) - len(shown):
        least = quantity(LEAST_SHARE, Unit.FRACTION)
        blocks.append(Text(f"{counted(hidden, 'more part')} below {least} of the loss", quiet=True))
    if shown:
        edit = Edit("ideal", places=((shown[0].dimension, shown[0].name),))
        blocks.append(Text(f"To predict one part alone: usp-prof whatif PATH --edit {edit}", quiet=True))
    return Section("ideal", TITLE, tuple(blocks))


def _name(part: Part) -> str:
    return f"{KINDS[part.name]} actions" if part.name in KINDS else f"{part.dimension} {part.name}"


def section_of_job(slowdown: JobSlowdown) -> Section:
    """Build the job slowdown of an operation table."""
    worst = slowdown.worst_worker
    rows = [
        (
            f"worst worker (stage {worst.stage}, replica {worst.replica})",
            slowdown.step_ns - worst.step_ns,
            slowdown.worst_worker_share,
        ),
        ("last stage", slowdown.step_ns - slowdown.last_stage_ideal_ns, slowdown.last_stage_share),
    ]
    return Section("ideal", TITLE, (_figures(slowdown.step_ns, slowdown.ideal_ns), _parts(rows)))


def _figures(step_ns: float, ideal_ns: float) -> KeyFigures:
    lost_ns = step_ns - ideal_ns
    return KeyFigures(
        (
            KeyFigure("job slowdown", step_ns / ideal_ns, Unit.RATIO, "step divided by ideal step"),
            KeyFigure("step", step_ns, Unit.NS, "measured, mean over ranks and steps"),
            KeyFigure("ideal step", ideal_ns, Unit.NS, IDEAL),
            KeyFigure("loss", lost_ns, Unit.NS, f"{quantity(lost_ns / step_ns, Unit.FRACTION)} of the step"),
        )
    )


def _parts(rows: Sequence[tuple[Cell, ...]]) -> Block:
    columns = {"part": None, "saves": Unit.NS, "of the loss": Unit.FRACTION}
    return data_table("Saved if only this part were ideal (parts overlap)", columns, rows)


def json_of_run(slowdown: Slowdown) -> str:
    """Format the job slowdown of a run, and its parts, as JSON."""
    overall = slowdown.overall
    parts = [
        {"what": part.dimension, "name": part.name, "step_ns": part.step_ns, "share": part.share}
        for part in slowdown.parts
    ]
    ideal_ns = None if overall.unknown else overall.ideal_ns
    replayed = slowdown.replayed.which
    return _json(overall.step_ns or None, ideal_ns, overall.slowdown, parts, overall.unknown, replayed)


def json_of_job(slowdown: JobSlowdown) -> str:
    """Format the job slowdown of an operation table as JSON."""
    worst = slowdown.worst_worker
    last_stage = {
        "what": "stage",
        "name": "last",
        "step_ns": slowdown.last_stage_ideal_ns,
        "share": slowdown.last_stage_share,
    }
    worker = {
        "what": "worker",
        "name": f"stage {worst.stage}, replica {worst.replica}",
        "step_ns": worst.step_ns,
        "share": slowdown.worst_worker_share,
    }
    return _json(slowdown.step_ns, slowdown.ideal_ns, slowdown.slowdown, [last_stage, worker])


def _json(
    step_ns: float | None,
    ideal_ns: float | None,
    slowdown: float | None,
    parts: list[dict[str, object]],
    unknown: str = "",
    replayed: str = "",
) -> str:
    """Format as JSON; unknown values are null, with the reason."""
    fields = {
        "step_ns": step_ns,
        "ideal_ns": ideal_ns,
        "slowdown": slowdown,
        "unknown": unknown,
        "replayed": replayed,
        "parts": parts,
    }
    return answer_text("ideal", fields)
