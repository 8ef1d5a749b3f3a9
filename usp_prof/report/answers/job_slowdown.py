"""Job slowdown as text and JSON: the step compared with its ideal, and the parts of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.finding import LEAST_LOSS
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.format import quantity
from usp_prof.report.writers.json_text import answer_text

if TYPE_CHECKING:
    from usp_prof.whatif.attribution import Slowdown
    from usp_prof.whatif.op_replay import JobSlowdown

MISSING = "The ideal step (all ranks like their peers) is unknown: {}."
"""Output for a run without a known ideal."""
NO_LOSS = "All ranks perform like their peers."
"""Output for a run without loss."""
WITHIN_ERROR = "The difference is within the replay's error of ±{}, so it is not attributed to ranks, axes or stages."
"""Output for a run whose loss may be an error of the replay."""

SHARES = "Share of the loss that disappears if only this part is ideal (shares overlap):"
LEAST_SHARE = 0.005
"""Minimum share of the loss that the text lists."""
KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""Names of the kinds of pipeline actions."""


def of_run(slowdown: Slowdown, *, as_json: bool) -> str:
    """Format the job slowdown of a run, and its parts."""
    replayed = slowdown.replayed.which
    if as_json:
        parts = [
            {"what": part.dimension, "name": part.name, "step_ns": part.step_ns, "share": part.share}
            for part in slowdown.parts
        ]
        overall = slowdown.overall
        step_ns, ideal_ns = overall.step_ns or None, None if overall.unknown else overall.ideal_ns
        return _ideal_json(step_ns, ideal_ns, overall.slowdown, parts, overall.unknown, replayed)
    overall = slowdown.overall
    if overall.unknown:
        return MISSING.format(overall.unknown) + "\n"
    head = _head(overall.step_ns, overall.ideal_ns, overall.step_ns / overall.ideal_ns)
    if replayed:
        head += f"\nThe ideal step is {replayed}."
    if not slowdown.parts:
        is_uncertain = overall.loss_fraction > LEAST_LOSS
        why = WITHIN_ERROR.format(quantity(overall.error_fraction, Unit.FRACTION)) if is_uncertain else NO_LOSS
        return f"{head}\n{why}\n"
    shown = [part for part in slowdown.parts if part.share >= LEAST_SHARE]
    lines = [head, SHARES]
    lines += [f"  {part.dimension:6} {KINDS.get(part.name, part.name):16} {part.share:6.1%}" for part in shown]
    if hidden := len(slowdown.parts) - len(shown):
        lines.append(f"  {counted(hidden, 'part')} below {quantity(LEAST_SHARE, Unit.FRACTION)}")
    return "\n".join(lines) + "\n"


def of_job(slowdown: JobSlowdown, *, as_json: bool) -> str:
    """Format the job slowdown of an operation table."""
    worst = slowdown.worst_worker
    if as_json:
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
        return _ideal_json(slowdown.step_ns, slowdown.ideal_ns, slowdown.slowdown, [last_stage, worker])
    head = _head(slowdown.step_ns, slowdown.ideal_ns, slowdown.slowdown)
    return (
        f"{head}\n{SHARES}\n"
        f"  worst worker  {slowdown.worst_worker_share:.1%}  stage {worst.stage}, replica {worst.replica}\n"
        f"  last stage    {slowdown.last_stage_share:.1%}\n"
    )


def _ideal_json(
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


def _head(step_ns: float, ideal_ns: float, slowdown: float) -> str:
    step, ideal = quantity(step_ns, Unit.NS), quantity(ideal_ns, Unit.NS)
    return f"step {step}, ideal {ideal}: slowdown {quantity(slowdown, Unit.RATIO)}"
