"""Job slowdown as text or JSON: how much longer the step is than with all ranks alike, and which parts cost it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from usp_prof.whatif.attribution import Slowdown
    from usp_prof.whatif.op_replay import JobSlowdown

MISSING = "The step with all ranks alike is not known: {}."
"""What is said of a run whose ideal cannot be told."""
NO_LOSS = "The ranks are alike: no rank, axis or stage makes this run lose time that exceeds the error."
"""What is said of a run that is at its ideal."""


def of_run(found: Slowdown, *, as_json: bool) -> str:
    """Write how much slower the run is than at its ideal, and why."""
    if as_json:
        parts = [
            {"what": each.what, "name": each.name, "step_ns": each.step_ns, "share": each.share} for each in found.parts
        ]
        whole = found.whole
        step_ns, ideal_ns = whole.step_ns or None, None if whole.unknown else whole.ideal_ns
        return _ideal_json(step_ns, ideal_ns, whole.slowdown, parts, whole.unknown)
    whole = found.whole
    if whole.unknown:
        return MISSING.format(whole.unknown) + "\n"
    head = _head(whole.step_ns, whole.ideal_ns, whole.step_ns / whole.ideal_ns)
    if not found.parts:
        return f"{head}\n{NO_LOSS}\n"
    lines = [head, "of the loss goes away when this alone is ideal:"]
    lines += [f"  {each.what:6} {each.name:12} {each.share:8.1%}" for each in found.parts]
    return "\n".join(lines) + "\n"


def of_job(found: JobSlowdown, *, as_json: bool) -> str:
    """Write the same of an operation table."""
    if as_json:
        ideal, share = found.last_stage_ideal_ns, found.last_stage_share
        last_stage = {"what": "stage", "name": "last", "step_ns": ideal, "share": share}
        return _ideal_json(found.step_ns, found.ideal_ns, found.slowdown, [last_stage])
    head = _head(found.step_ns, found.ideal_ns, found.slowdown)
    return f"{head}\nlast stage: {found.last_stage_share:.1%} of the loss\n"


def _ideal_json(
    step_ns: float | None,
    ideal_ns: float | None,
    slowdown: float | None,
    parts: list[dict[str, object]],
    unknown: str = "",
) -> str:
    """Write what is not known as null, with the reason."""
    data = {
        "format": "usp-prof-ideal",
        "version": 1,
        "step_ns": step_ns,
        "ideal_ns": ideal_ns,
        "slowdown": slowdown,
        "unknown": unknown,
        "parts": parts,
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _head(step_ns: float, ideal_ns: float, slowdown: float) -> str:
    step, ideal = quantity(step_ns, Unit.NS), quantity(ideal_ns, Unit.NS)
    return f"step {step}, ideal {ideal}: {slowdown:.3f} times as long"
