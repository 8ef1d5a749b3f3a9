"""Predictions as sections: edits alone and together, before and after, suggestions, other schedules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from usp_prof.analyses import breakdown, mfu
from usp_prof.charts.inputs import PipelineSchedule, Waterfall
from usp_prof.findings.draft import Input, damage
from usp_prof.findings.engine import repairs_in
from usp_prof.model.edit import Edit
from usp_prof.model.finding import NOTHING_FOUND, Finding
from usp_prof.model.footprint import Footprint
from usp_prof.model.metric import Unit
from usp_prof.model.printable import shortened, spans
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.replay.step_times import unedited
from usp_prof.report.answers.edit_words import in_words
from usp_prof.report.document import Chart, DataTable, KeyFigure, KeyFigures, Section, Text, data_table
from usp_prof.report.figures import label_of
from usp_prof.report.format import Cell, quantity
from usp_prof.report.run_facts import run_facts
from usp_prof.report.sections.pipeline import simulated_schedule
from usp_prof.report.words import mean_rank_step
from usp_prof.report.writers.json_text import ChangeJson, MemoryJson, PredictionJson, write_prediction
from usp_prof.schedule_orders import Timeline as SimulatedSchedule
from usp_prof.whatif.layout import memory_of
from usp_prof.whatif.predict import Prediction
from usp_prof.whatif.predicted import predicted_tables
from usp_prof.whatif.rescheduled import Rescheduled

LEAST_SHARE = 0.0005
"""Parts below this share of the step are not listed."""
_SHOWN_CODES = ("predicted_ranks", "predicted_calls", "rearranged")
"""Rows of health about the basis of a prediction."""


def verdict(together: Prediction) -> str:
    """Describe what the changes save together."""
    *first, last = (in_words(edit) for edit in together.edits)
    changes = f"{', '.join(first)} and {last}" if first else last
    was, now = (quantity(length, Unit.NS) for length in (together.before_ns, together.after_ns))
    gain, error = (quantity(part, Unit.FRACTION) for part in (abs(together.gain_fraction), together.error_fraction))
    is_none = gain == quantity(0, Unit.FRACTION)
    effect = "saves" if is_none or together.gain_fraction > 0 else "costs"
    step = step_of(together)
    return f"{changes[:1].upper()}{changes[1:]}: {effect} {gain} ±{error} of the {step} ({was} to {now})."


def whatif_section(alone: Sequence[Prediction], together: Prediction) -> Section:
    """Build the step with the changes applied, each alone and together."""
    notes = without_recording(together), f"error of the unchanged replay: {100 * together.replay_error:.2f}%"
    return Section(
        "whatif",
        "What if: " + ", ".join(in_words(edit) for edit in together.edits),
        (
            key_figures(
                together, "; ".join(note for note in notes if note), "gain together" if len(alone) > 1 else "gain"
            ),
            *_cautions(together),
            *([Chart("", _bars(together))] if together.before_ns > 0 else []),
            *((_table(alone), Text("Gains overlap and never add up.", quiet=True)) if len(alone) > 1 else ()),
        ),
    )


def key_figures(together: Prediction, basis: str, gain: str = "gain") -> KeyFigures:
    """Build the step before and after, and the gain."""
    return KeyFigures(
        (
            KeyFigure(f"{step_of(together)}, measured", together.before_ns, Unit.NS, basis),
            KeyFigure("predicted", together.after_ns, Unit.NS),
            KeyFigure(gain, together.gain_fraction, Unit.FRACTION, sure(together)),
        )
    )


def step_of(prediction: Prediction) -> str:
    """Name the step that a prediction starts from."""
    return mean_rank_step(run_facts(prediction.replayed.tables, EVERYTHING, ""))


def without_recording(prediction: Prediction) -> str:
    """Return the recording cost that a prediction excludes, or an empty text."""
    recording_ns = prediction.recorded_ns - prediction.before_ns
    return f"without {quantity(recording_ns, Unit.NS)} for recording" if recording_ns else ""


def _disagreement(prediction: Prediction) -> list[Text]:
    """Build the note on repaired ranks whose measured lateness the replay does not explain."""
    repaired = {rank for edit in prediction.edits if edit.name == "rank_as_peers" for rank in edit.value.split("+")}
    unknown = [
        repair
        for repair in (repairs_in(prediction.replayed.tables) if repaired else ())
        if repair.disagrees and str(repair.rank) in repaired
    ]
    return [
        Text(
            f"Rank {repair.rank} is late by {quantity(repair.late_fraction, Unit.FRACTION)} of the step. "
            "The prediction covers only the part that the replay explains, so what the whole repair saves is unknown "
            "(see health)."
        )
        for repair in unknown
    ]


def _cautions(prediction: Prediction) -> list[Text]:
    """Build the notes that belong next to the gain: what the replay cannot explain, lost events, steps and ranks."""
    tables, which = prediction.replayed.tables, prediction.replayed.which
    lost = damage(tables, (Input.ALL_RANKS,))
    texts = _disagreement(prediction)
    if lost:
        texts.append(Text(f"The gain may be wrong: it {lost}."))
    if tables.cut_steps:
        texts.append(Text(f"Without step {spans(tables.cut_steps)}: the recording of a rank ended before it did."))
    if which:
        texts.append(Text(f"The prediction is {which}.", quiet=True))
    return texts


def sure(prediction: Prediction) -> str:
    """Return error and basis of a prediction, and whether its gain may be nothing."""
    is_open = 0 < prediction.gain_fraction <= prediction.error_fraction
    doubt = "; the gain is not certain" if is_open else ""
    return f"±{quantity(prediction.error_fraction, Unit.FRACTION)} of the step, {prediction.basis.word}{doubt}"


def _bars(together: Prediction) -> Waterfall:
    return Waterfall(
        "measured", together.before_ns, ("all changes",), (together.after_ns - together.before_ns,), "predicted"
    )


def _table(alone: Sequence[Prediction]) -> DataTable:
    columns = {
        "change": None, "step": Unit.NS, "gain alone": Unit.FRACTION, "error": Unit.FRACTION, "basis": None,
    }  # fmt: skip
    rows = [
        (in_words(change.edits[0]), change.after_ns, change.gain_fraction, change.error_fraction, change.basis.word)
        for change in alone
    ]
    return data_table("Each change alone", columns, rows)


def predicted_steps(prediction: Prediction) -> Selection:
    """Return the steps that a prediction covers, from the first on; a comparison would leave out warm-up."""
    steps = unedited(prediction.replayed.tables).step
    return Selection(first_step=int(steps.min())) if len(steps) else EVERYTHING


def before_after_section(together: Prediction) -> Section:
    """Build the mean step and its parts, before and after, over the steps of the prediction."""
    tables, steps = together.replayed.tables, predicted_steps(together)
    after_tables = predicted_tables(together)
    rows: list[tuple[Cell, ...]] = [_row("step", together.recorded_ns, together.edited_ns, Unit.NS)]
    before, after = (breakdown.compute(run, steps).mean_ns() for run in (tables, after_tables))
    for name in dict.fromkeys([*before, *after]):
        pair = before.get(name, 0.0), after.get(name, 0.0)
        if max(pair) >= LEAST_SHARE * together.recorded_ns:
            rows.append(_row(f"  {label_of(name)}", *pair, Unit.NS))
    was, now = mfu.compute(tables, steps), mfu.compute(after_tables, steps)
    rows.append(_row(f"MFU ({was.convention})", was.mfu, now.mfu, Unit.FRACTION))
    rows.append(_row("tokens", was.tokens_per_second, now.tokens_per_second, Unit.PER_SECOND))
    rows += _memory_rows(memory_of(together.layout_before), memory_of(together.layout_after))
    notes = [row.detail for row in after_tables.health if row.code in _SHOWN_CODES]
    if together.recorded_ns != together.before_ns:
        notes.append("Times include the cost of recording; the gain excludes it.")
    if memory_of(together.layout_after) is not None:
        notes.append("* Estimated from the model's description: compare before and after, not with a measured peak.")
    table = data_table("", {step_of(together): None, "before": None, "after": None}, rows)
    return Section("before-after", "Before and after", (table, *(Text(note, quiet=True) for note in notes)))


def _row(name: str, before: float | None, after: float | None, unit: Unit) -> tuple[Cell, ...]:
    return name, quantity(before, unit), quantity(after, unit)


def _memory_rows(before: Footprint | None, after: Footprint | None) -> list[tuple[Cell, ...]]:
    """Return rows of the fullest rank's memory, and of the parts that change."""
    if before is None or after is None:
        return []
    parts_after = _memory_parts(after)
    rows = [_row("memory of the fullest rank *", before.total_bytes, after.total_bytes, Unit.BYTES)]
    for part, size in _memory_parts(before).items():
        if size != parts_after[part]:
            rows.append(_row(f"  {part}", size, parts_after[part], Unit.BYTES))
    return rows


def _memory_parts(need: Footprint) -> dict[str, int]:
    """Return the parts by name; parameters gathered for a layer count as parameters."""
    return {
        "parameters": need.parameter_bytes + need.gathered_bytes,
        "gradients": need.gradient_bytes,
        "optimizer": need.optimizer_bytes,
        "activations": need.activation_bytes,
        "logits": need.logit_bytes,
    }


# Suggestions together: from the measured to the predicted step, one suggestion at a time.


LONGEST = 48
"""Characters of a finding's title next to a bar."""


def together_section(ticked: Sequence[Finding], steps: Sequence[Prediction], path: str) -> Section:
    """Build the effect of the selected findings; `steps` replays the first, the first two, and so on."""
    words = " ".join(f"--edit {edit}" for edit in " ".join(str(edit) for edit in steps[-1].edits).split())
    return Section(
        "together",
        "Selected suggestions together",
        (
            key_figures(
                steps[-1],
                without_recording(steps[-1]),
                f"gain of {len(ticked)} together" if len(ticked) > 1 else "gain of the selected one",
            ),
            *_cautions(steps[-1]),
            Chart("", bars(ticked, steps)),
            Text(f"usp-prof whatif {path} {words}", quiet=True),
        ),
    )


def bars(ticked: Sequence[Finding], steps: Sequence[Prediction]) -> Waterfall:
    """Build the waterfall from the measured step through each change to the predicted step."""
    after = [steps[0].before_ns, *(step.after_ns for step in steps)]
    return Waterfall(
        "now",
        after[0],
        tuple(shortened(finding.title, LONGEST, "…") for finding in ticked),
        tuple(late - early for early, late in pairwise(after)),
        "with all changes",
    )


# Another pipeline schedule: the measured actions in its order.


def schedule_section(edit: Edit, rescheduled: Rescheduled) -> Section:
    """Build the window under another schedule and the measured one, and its actions."""
    simulated = f"its own order simulated: {quantity(rescheduled.simulated_ns, Unit.NS)}"
    figures = (
        KeyFigure("window, measured", rescheduled.measured_ns, Unit.NS, simulated),
        KeyFigure(
            f"window under {edit.value}", rescheduled.other_ns, Unit.NS, f"±{quantity(rescheduled.error_ns, Unit.NS)}"
        ),
        KeyFigure("bubble", rescheduled.bubble_fraction, Unit.FRACTION),
    )
    return Section(
        "another", f"Another schedule: {edit}", (KeyFigures(figures), Chart("", as_chart(rescheduled.timeline)))
    )


def as_chart(line: SimulatedSchedule) -> PipelineSchedule:
    """Return simulated actions as the chart draws them."""
    stages = [
        sorted({a.stage for a, r in zip(line.actions, line.rank.tolist(), strict=True) if r == rank})
        for rank in range(line.ranks)
    ]
    return simulated_schedule(line, tuple(f"stage {', '.join(map(str, held))}" for held in stages))


# JSON, and the run without its loss.


def as_json(name: str, alone: Sequence[Prediction], together: Prediction) -> str:
    """Format the predicted run's report and the recorded run's, by the published schema."""
    from usp_prof.report.build import analyze, build  # noqa: PLC0415 - all analyses, for those who ask for them

    tables = together.replayed.tables
    predicted = predicted_tables(together)
    after = build(predicted, analyze(predicted), name=name, search_result=NOTHING_FOUND)
    before = build(tables, analyze(tables), name=name, search_result=NOTHING_FOUND)
    prediction = PredictionJson(
        alone=[_change(single) for single in alone],
        together=_change(together),
        replay_error_fraction=together.replay_error,
        tokens_per_step_before=together.layout_before.tokens_per_step,
        tokens_per_step_after=together.layout_after.tokens_per_step,
        memory_before=_memory(memory_of(together.layout_before)),
        memory_after=_memory(memory_of(together.layout_after)),
        replayed=together.replayed.which,
    )
    return write_prediction(after, prediction, before)


def _change(prediction: Prediction) -> ChangeJson:
    edits = [str(edit) for edit in prediction.edits]
    return ChangeJson(
        edits,
        prediction.before_ns,
        prediction.after_ns,
        prediction.gain_fraction,
        prediction.error_fraction,
        prediction.basis,
    )


def _memory(need: Footprint | None) -> MemoryJson | None:
    return MemoryJson(*_memory_parts(need).values()) if need is not None else None
