"""How is a prediction written? A few lines for people, the predicted run's report for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from usp_prof.analyses import breakdown, mfu
from usp_prof.model.metric import Unit
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.format import quantity
from usp_prof.whatif.memory import memory_of
from usp_prof.whatif.predicted import predicted_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.replay.step_times import StepTimes
    from usp_prof.report.writers.json_text import ChangeJson, MemoryJson
    from usp_prof.run import Run
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.attribution import Slowdown
    from usp_prof.whatif.memory import Memory
    from usp_prof.whatif.predict import Prediction
    from usp_prof.whatif.reordering.op_replay import JobSlowdown

_LEAST = 0.0005
MISSING = "The step with all ranks alike is not known: {}."
"""What is said of a run whose ideal cannot be told."""
NO_LOSS = "The ranks are alike: no rank, axis or stage makes this run lose time that exceeds the error."
"""What is said of a run that is at its ideal."""
_PARTS = ("parameters", "gradients", "optimizer", "activations", "logits")


def as_text(tables: TableSet, alone: Sequence[Prediction], together: Prediction, measured: StepTimes) -> str:
    """Write what each edit gains, and where the step goes before and after."""
    worst = measured.error.max(initial=0.0)
    lines = [f"step {quantity(together.before_ns, Unit.NS)}, replayed unchanged within {worst:.2%} of it"]
    lines += [f"  {each.edits[0]!s:32} {_line(each)}" for each in alone]
    if len(alone) > 1:
        lines.append(f"  {'all together':32} {_line(together)}")
    lines += ["", f"  {'':32} {'before':>12} {'after':>12}"]
    lines += [f"  {name:32} {before:>12} {after:>12}" for name, before, after in _compared(tables, together, measured)]
    if memory_of(together.layout_after) is not None:
        lines.append("  * by formula from the model's description: for the change, not for the figure")
    told = [row.detail for row in predicted_tables(tables, together).health if row.code in _SAID]
    lines += ["", *(f"  note: {detail}" for detail in told)] if told else []
    return "\n".join(lines) + "\n"


_SAID = ("predicted_ranks", "predicted_calls", "rearranged")


def _line(each: Prediction) -> str:
    after = quantity(each.after_ns, Unit.NS)
    return f"{after:>10}  gain {each.gain_fraction:7.2%} +- {each.error_fraction:.2%}  {each.basis}"


def _compared(tables: TableSet, together: Prediction, measured: StepTimes) -> list[tuple[str, str, str]]:
    """Set the mean step and its parts beside each other, over the steps that the prediction is of."""
    settled = measured.step[measured.settled]
    steps = Selection(first_step=int(settled.min())) if len(settled) else EVERYTHING
    after_tables = predicted_tables(tables, together)
    rows = [("step", quantity(together.before_ns, Unit.NS), quantity(together.after_ns, Unit.NS))]
    before, after = (_partition(each, steps) for each in (tables, after_tables))
    for name in dict.fromkeys([*before, *after]):
        pair = before.get(name, 0.0), after.get(name, 0.0)
        if max(pair) >= _LEAST * together.before_ns:
            rows.append((f"  {name}", quantity(pair[0], Unit.NS), quantity(pair[1], Unit.NS)))
    was, now = mfu.compute(tables, steps), mfu.compute(after_tables, steps)
    rows.append((f"MFU ({was.convention})", quantity(was.mfu, Unit.FRACTION), quantity(now.mfu, Unit.FRACTION)))
    speed = was.tokens_per_second, now.tokens_per_second
    rows.append(("tokens", quantity(speed[0], Unit.PER_SECOND), quantity(speed[1], Unit.PER_SECOND)))
    one, other = memory_of(together.layout_before), memory_of(together.layout_after)
    if one is not None and other is not None:
        rows.append(
            ("memory of the fullest rank *", quantity(one.whole, Unit.BYTES), quantity(other.whole, Unit.BYTES))
        )
        for part in _PARTS:
            pair = getattr(one, part), getattr(other, part)
            if pair[0] != pair[1]:
                rows.append((f"  {part}", quantity(pair[0], Unit.BYTES), quantity(pair[1], Unit.BYTES)))
    return rows


def _partition(tables: TableSet, steps: Selection) -> dict[str, float]:
    return {part.role: part.mean_ns for part in breakdown.compute(tables, steps).slices()}


def as_json(opened: Run, alone: Sequence[Prediction], together: Prediction) -> str:
    """Write the predicted run's report with the recorded run's beside it, by the published schema."""
    from usp_prof.report.build import analyse, build  # noqa: PLC0415 - all analyses, for those who ask for them
    from usp_prof.report.writers.json_text import PredictionJson, write_prediction  # noqa: PLC0415

    tables = predicted_tables(opened.tables, together)
    after = build(tables, analyse(tables), name=opened.name, findings=())
    before = build(opened.tables, analyse(opened.tables), name=opened.name, findings=())
    prediction = PredictionJson(
        alone=[_change(each) for each in alone],
        together=_change(together),
        replay_error_fraction=together.replay_error,
        tokens_per_step_before=together.layout_before.tokens_per_step,
        tokens_per_step_after=together.layout_after.tokens_per_step,
        memory_before=_memory(memory_of(together.layout_before)),
        memory_after=_memory(memory_of(together.layout_after)),
    )
    return write_prediction(after, prediction, before)


def _change(each: Prediction) -> ChangeJson:
    from usp_prof.report.writers.json_text import ChangeJson  # noqa: PLC0415

    edits = [str(edit) for edit in each.edits]
    return ChangeJson(edits, each.before_ns, each.after_ns, each.gain_fraction, each.error_fraction, each.basis)


def _memory(memory: Memory | None) -> MemoryJson | None:
    from usp_prof.report.writers.json_text import MemoryJson  # noqa: PLC0415

    return MemoryJson(*(getattr(memory, part) for part in _PARTS)) if memory is not None else None


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
