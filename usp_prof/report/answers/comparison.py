"""Comparison of two runs as sections: why the step differs, metrics with their noise, work that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from usp_prof.analyses.result import columns_of, frame
from usp_prof.charts.inputs import Waterfall
from usp_prof.gate.comparison import BETTER, CHANGED, WITHIN_NOISE, WORSE, Comparison, Pair, direction
from usp_prof.gate.judgment import Judgment, Scale, Verdict
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.answers.wording import change, condition_changes, ends, interval, is_undetermined, part_label
from usp_prof.report.document import Chart, KeyFigure, KeyFigures, Section, Text, data_table
from usp_prof.report.format import column_scale, quantity
from usp_prof.report.sections.timeline import slices_of
from usp_prof.report.writers import markdown, terminal
from usp_prof.report.writers.json_text import answer_text
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd


FORMATS = ("terminal", "markdown", "json")
MOST_RANKS = 4
"""Ranks whose timelines are drawn."""
ALIKE = 0.005
"""Steps that differ by less are described as equal."""
IMPORTANT = (
    "job_step_time", "step_time", "tokens_per_second", "mfu", "exposed_comm_time", "idle_time", "bubble_fraction",
    "job_slowdown", "straggler_cost", "peak_memory", "taken_memory", "compute_time", "comm_time", "wait_time",
)  # fmt: skip
"""The most important metrics, in order; others follow by size of their change."""
SMALL = 0.01
"""Parts that changed by less than this share of the largest change are combined."""
NOT_DIVIDED = (
    "These runs differ in device or work, so the difference of their steps is not divided into parts: the parts of one "
    "do not correspond to the parts of the other."
)
MEANS_NOTE = (
    "Before and after are means over ranks and steps; job_step_time is a median, memory that of the fullest rank. "
    "Reports show slowdown and straggler_cost of the worst rank instead."
)
RESULTS_NOTE = (
    "Within noise: the steps vary too much, or are too few, to attribute the change to the runs. Changed: neither "
    "direction is better. Warm-up and outlier steps are not judged."
)
WORK_NOTE = "Mean over ranks. Calls that run at the same time are added up, so they can exceed the communication time."
TOO_WIDE_NOTE = "A change of - is undetermined: with so much noise, nearly any change is possible."
_OWN = 2
"""The first two figures of a metric, before and after, are in its unit; its change may have another."""
_COMPARED: dict[str, Unit | None] = dict.fromkeys(("difference", "before", "after"), Unit.NS)
"""Columns of times, on one scale; the difference is first because narrow screens drop the last columns."""


def render(compared: Comparison, form: str, *, color: bool = False, everything: bool = False, width: int = 120) -> str:
    """Format a comparison in one of `FORMATS`; metrics of axes and causes only with `everything`."""
    if form == "json":
        return answer_text("compare", asdict(compared))
    written = []
    for pair in compared.pairs:
        title = f"{compared.label} -> {pair.label}"
        answer = sections(pair, compared.label, pair.label, everything=everything)
        if form == "markdown":
            written.append(markdown.sections_text(title, answer))
        else:
            written.append(terminal.sections_text(title, answer, color=color, width=width))
    return "\n".join(written)


def sections(pair: Pair, before: str, after: str, *, everything: bool) -> tuple[Section, ...]:
    """Build all sections of a comparison."""
    parts = (conditions(pair), waterfall(pair, before, after), metrics(pair, everything=everything), work(pair))
    return tuple(section for section in parts if section.blocks)


def waterfall(pair: Pair, before: str, after: str) -> Section:
    """Build why the step is longer or shorter; only the steps if times are not comparable."""
    name, step = headline_step(pair)
    before_ns, after_ns = (step.before, step.after) if step is not None else (0.0, 0.0)
    steps = (
        KeyFigure(f"{name} before", before_ns, Unit.NS, before),
        KeyFigure(f"{name} after", after_ns, Unit.NS, after),
    )
    if not are_times_compared(pair):
        return Section("waterfall", "Steps", (KeyFigures(steps), Text(NOT_DIVIDED)))
    delta_ns = after_ns - before_ns
    is_noise = step is not None and direction(step) == WITHIN_NOISE
    note = WITHIN_NOISE if is_noise else "longer" if delta_ns > 0 else "shorter"
    difference = KeyFigure("difference", delta_ns, Unit.NS, note)
    key = KeyFigures((*steps, difference))
    rows = sorted(pair.waterfall, key=lambda part: -abs(part.delta_ns))
    cells = [
        (part_label(part.name), *_compared(part.before_ns, part.after_ns))
        for part in rows
        if part.before_ns or part.after_ns
    ]
    table = data_table("", {"part of the mean rank step": None, **_COMPARED}, cells, shared=_COMPARED)
    return Section("waterfall", "Why the step is longer or shorter", (key, Chart("", as_waterfall(pair)), table))


def headline_step(pair: Pair) -> tuple[str, Judgment | None]:
    """Return the judgment of the job's step and its name; that of the mean rank step if a run has no job step."""
    judged = {judgment.key: judgment for judgment in pair.judgements}
    job, rank = judged.get("job_step_time"), judged.get("step_time")
    if job is not None and math.isfinite(job.before + job.after):
        return "step", job
    return "mean rank step", rank if rank is not None and math.isfinite(rank.before + rank.after) else None


def verdict(pair: Pair, before: str, after: str) -> str:
    """Describe how much the step differs, and its largest change; only the steps if times are not comparable."""
    name, step = headline_step(pair)
    if step is None or not step.before:
        return ""
    ratio = step.after / step.before - 1
    lengths = f"{quantity(step.before, Unit.NS)} before, {quantity(step.after, Unit.NS)} after"
    if not are_times_compared(pair):
        return f"The {name}s of {before} and {after} are not comparable: {lengths}."
    if abs(ratio) < ALIKE:
        return f"The {name}s of {before} and {after} take the same time: {lengths}."
    if direction(step) == WITHIN_NOISE:
        return f"The {name}s of {before} and {after} differ by less than their noise: {lengths}."
    how, by = ("longer", "more") if ratio > 0 else ("shorter", "less")
    text = f"The {name} of {after} is {quantity(abs(ratio), Unit.FRACTION)} {how} than that of {before} ({lengths})"
    same_way = [part for part in pair.waterfall if part.delta_ns * ratio > 0]
    if not same_way:
        return f"{text}."
    most = max(same_way, key=lambda part: abs(part.delta_ns))
    size = quantity(abs(most.delta_ns), Unit.NS)
    return f"{text}. The largest part is {part_label(most.name)}: {size} {by} in the mean rank step."


def are_times_compared(pair: Pair) -> bool:
    """Return whether any time was compared; none is for different devices or models."""
    measured = [
        judgment
        for judgment in pair.judgements
        if judgment.unit is Unit.NS and math.isfinite(judgment.before + judgment.after)
    ]
    return not measured or any(judgment.verdict is not Verdict.NOT_COMPARED for judgment in measured)


def picture(pair: Pair) -> Chart:
    """Draw why the step is longer or shorter."""
    return Chart("Why the step is longer or shorter", as_waterfall(pair))


def as_waterfall(pair: Pair) -> Waterfall:
    """Build the waterfall of changed parts; parts too small to see are combined."""
    rows = sorted(pair.waterfall, key=lambda part: -abs(part.delta_ns))
    least = SMALL * max((abs(part.delta_ns) for part in rows), default=0.0)
    shown = [part for part in rows if abs(part.delta_ns) >= least and part.delta_ns]
    before = sum(part.before_ns for part in rows)
    rest = sum(part.delta_ns for part in rows if part not in shown)
    deltas = [(part_label(part.name), part.delta_ns) for part in shown] + ([("other", rest)] if rest else [])
    return Waterfall(
        "before, mean rank",
        before,
        tuple(name for name, _ in deltas),
        tuple(delta for _, delta in deltas),
        "after, mean rank",
    )


def metrics(pair: Pair, *, everything: bool) -> Section:
    """Build the table of metrics; `everything` includes unimportant ones without a change, and each axis and rank."""
    judged = sorted(_judged(pair, everything=everything), key=_importance)
    shown = [judgment for judgment in judged if everything or _is_shown(judgment)]
    columns = ("metric", "before", "after", "change", "result", "interval")  # narrow screens drop the last
    rows = tuple(
        (
            judgment.key,
            quantity(judgment.before, judgment.unit) if math.isfinite(judgment.before) else None,
            quantity(judgment.after, judgment.unit) if math.isfinite(judgment.after) else None,
            change(judgment) if math.isfinite(judgment.change) else None,
            direction(judgment) or str(judgment.reason),
            interval(judgment) if math.isfinite(judgment.low) else None,
        )
        for judgment in shown
    )
    table = data_table("", dict.fromkeys(columns), rows, prose=("result",))
    notes = [MEANS_NOTE, RESULTS_NOTE]
    if any(is_undetermined(judgment) for judgment in shown):
        notes.append(TOO_WIDE_NOTE)
    more = "usp-prof explain METRIC describes a metric."
    if hidden := len(judged) - len(shown):
        more = f"--all lists {counted(hidden, 'more metric')}, also by axis, cause and rank. {more}"
    blocks = (Text(note, quiet=True) for note in (*notes, more))
    return Section("metrics", "Metrics, most important first", (table, *blocks))


def metrics_shown(pair: Pair, *, everything: bool) -> pd.DataFrame:
    """Return the metrics by importance: values in `unit`, changes in the unit of `in`."""
    import pandas as pd  # noqa: PLC0415 - only for those who ask for a frame

    rows = []
    for judgment in sorted(_judged(pair, everything=everything), key=_importance):
        scale = column_scale([judgment.before, judgment.after], judgment.unit)
        own = judgment.scale is Scale.ABSOLUTE and judgment.unit is not Unit.FRACTION
        interval_ends = (judgment.low, judgment.high) if own else ends(judgment)
        before, after, change, low, high = (
            _digits(value / (scale.factor if own or place < _OWN else 0.01), 4 if place < _OWN else 3)
            for place, value in enumerate((judgment.before, judgment.after, judgment.change, *interval_ends))
        )
        if is_undetermined(judgment):
            change = low = high = None
        rows.append(
            {
                "metric": judgment.title, "of": judgment.key, "before": before, "after": after, "unit": scale.suffix,
                "change": change, "from": low, "to": high,
                "in": scale.suffix if own else "%" if judgment.scale is Scale.RELATIVE else "points",
                "shows": direction(judgment) or str(judgment.reason),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _digits(value: float, most: int) -> float | None:
    """Round to readable digits; None if unknown."""
    return float(f"{value:.{most}g}") + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0


def metrics_frame(pair: Pair, *, everything: bool) -> pd.DataFrame:
    """Return raw metrics: each in its unit, the change with its interval."""
    judged = _judged(pair, everything=everything)
    return frame(
        {
            **columns_of(judged, metric="title", key="key"),
            "unit": [str(judgment.unit) for judgment in judged],
            **columns_of(judged, "before", "after", "change", change_low="low", change_high="high"),
            "change_scale": [str(judgment.scale) for judgment in judged],
            "shows": [direction(judgment) or str(judgment.reason) for judgment in judged],
        }
    )


def work(pair: Pair) -> Section:
    """Build the table of ops, kernels and calls that changed most."""
    columns = {
        "kind": None, "name": None, "shapes": None, **_COMPARED, "calls before": Unit.COUNT,
        "calls after": Unit.COUNT,
    }  # fmt: skip
    rows = tuple(
        (
            change.sort, change.name, change.shape or None, *_compared(change.before_ns, change.after_ns),
            change.before_count, change.after_count,
        )
        for change in pair.why.work
    )  # fmt: skip
    blocks = (data_table("", columns, rows, shared=_COMPARED), Text(WORK_NOTE, quiet=True)) if rows else ()
    return Section("work", "Work that changed most, per step", blocks)


def conditions(pair: Pair) -> Section:
    """Build the doubts about the comparison, and the conditions that differ."""
    heads = dict.fromkeys(("kind", "condition", "before", "after"))
    rows = tuple(
        (change.kind, change.name, change.before or None, change.after or None)
        for change in condition_changes(pair.differences)
    )
    doubts = tuple(Text(str(doubt)) for doubt in pair.doubts)
    return Section("conditions", "Conditions that differ", (*doubts, *([data_table("", heads, rows)] if rows else ())))


def timelines(runs: Sequence[tuple[str, TableSet, int]]) -> Section:
    """Draw one step of each run, on the first ranks; each starts at its own first slice."""
    drawn = [(name, step, slices_of(tables, tables.ranks[:MOST_RANKS], step)) for name, tables, step in runs]
    charts = tuple(Chart(f"{name}, step {step}", slices) for name, step, slices in drawn if slices is not None)
    return Section("timelines", "Timelines, aligned by step", charts)


def _compared(before_ns: float, after_ns: float) -> tuple[float, float, float]:
    """Return the values of the columns `_COMPARED`."""
    return after_ns - before_ns, before_ns, after_ns


def _importance(judgment: Judgment) -> tuple[int, float, str]:
    """Return the sort key: important metrics first, the others by size of their change."""
    is_near_zero = judgment.scale is Scale.ABSOLUTE and judgment.unit is Unit.NS
    size = abs(judgment.change) if math.isfinite(judgment.change) and not is_near_zero else -1.0
    metric = judgment.key.partition("[")[0]
    return IMPORTANT.index(metric) if metric in IMPORTANT else len(IMPORTANT), -size, judgment.key


def _is_shown(judgment: Judgment) -> bool:
    """Return whether a metric is important, or changed beyond noise."""
    metric = judgment.key.partition("[")[0]
    return metric in IMPORTANT or direction(judgment) in {BETTER, WORSE, CHANGED}


def _judged(pair: Pair, *, everything: bool) -> list[Judgment]:
    return [judgment for judgment in pair.judgements if everything or "[" not in judgment.key]
