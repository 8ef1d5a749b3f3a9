"""First screen of a report: step time, MFU, where the step goes, which ranks are late, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.analyses.pipeline import PipelineResult
from usp_prof.analyses.result import impossible
from usp_prof.findings.causes import causes_of
from usp_prof.findings.draft import skipped_sentence
from usp_prof.model.finding import LEAST_LOSS, IdealStep
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted, spans
from usp_prof.report.document import (
    Block,
    DataTable,
    Findings,
    Health,
    KeyFigure,
    KeyFigures,
    Section,
    Stack,
    StackPart,
    Text,
    data_table,
)
from usp_prof.report.figures import Context, Figures, Key, axes_in_order, axis_words, label_of, parts
from usp_prof.report.format import quantity
from usp_prof.report.run_facts import RunFacts
from usp_prof.report.sections.plain import without_blanks
from usp_prof.report.verdict import NOTABLE, gains_in_messages
from usp_prof.report.words import mean_rank_step

if TYPE_CHECKING:
    from usp_prof.analyses.step_time import StepTimeResult

_TOP_HEALTH = 4
_WORST_RANKS = 3
_MFU_NEEDS = (
    "no_model", "no_tokens", "no_model_flop", "window_is_no_step",
    "paced_compute", "model_contradicted", "peak_contradicted", "devices_contradicted",
    "precision_unknown", "no_device_peak",
)  # fmt: skip
_MOST = 0.5
"""A part that causes half of a loss explains it."""


def build(context: Context) -> Section:
    """Build the first screen from what is known."""
    candidates: list[Block | None] = [
        _key_figures(context),
        where_the_step_goes(context.figures, context.run),
        communication(context.figures),
        _worst_ranks(context),
        lateness_and_repairs(context.figures),
        _findings(context),
        _health(context),
    ]
    return Section("summary", "Summary", tuple(block for block in candidates if block is not None))


def where_the_step_goes(figures: Figures, run: RunFacts) -> Stack | None:
    """Build the bar of the mean rank's step; its title names the ranks."""
    step_parts = parts(figures)
    if not step_parts:
        return None
    total = sum(value for _, _, value in step_parts)
    stack = tuple(StackPart(label, role, value) for label, role, value in step_parts)
    span = "window" if figures.cover_a_window else "step"
    return Stack(f"Where the {mean_rank_step(run, span)} goes", total, Unit.NS, stack)


def communication(figures: Figures) -> DataTable | None:
    """Build the table of each axis' communication and its three parts: exposed, hidden, contended."""
    total = figures.along("comm_time", "axis")
    if not total:
        return None
    columns = {
        "axis": None, "total": Unit.NS, "exposed": Unit.NS, "hidden": Unit.NS, "contended": Unit.NS,
        "overlap": Unit.FRACTION, "waiting": Unit.NS, "transfer": Unit.NS,
    }  # fmt: skip
    ids = (
        "comm_time", "exposed_comm_time", "hidden_comm_time", "contended_comm_time", "overlap_fraction", "wait_time",
        "transfer_time",
    )  # fmt: skip
    rows = [(axis, *(figures.at(metric, axis=axis) for metric in ids)) for axis in axes_in_order(total)]
    title = "Communication by axis, mean over ranks" + ("" if figures.cover_a_window else " and steps")
    times = [head for head, unit in columns.items() if unit is Unit.NS]
    return without_blanks(data_table(title, columns, rows, shared=times))


def _key_figures(context: Context) -> KeyFigures | None:
    figures = context.figures
    candidates = [
        _step(context),
        KeyFigure("MFU", figures.overall("mfu"), Unit.FRACTION, _mfu_second(context)),
        _tokens(context),
        _exposed(figures),
        _bubble(context),
        _slowdown(context),
    ]
    known_figures = tuple(
        figure for figure in candidates if figure is not None and (figure.value is not None or figure.second)
    )
    return KeyFigures(known_figures) if known_figures else None


def _step(context: Context) -> KeyFigure:
    figures = context.figures
    if figures.cover_a_window:
        return KeyFigure("window", figures.overall("window_time"), Unit.NS, "everything recorded; steps are unknown")
    steps = cast("StepTimeResult | None", context.results.get("step_time"))
    job, ordinary = (steps.job, steps.ordinary) if steps is not None else ((), ())
    lengths_ns = [step.length_ns for step in ordinary]
    notes = []
    if len(lengths_ns) > 1:
        low, high = (quantity(how(lengths_ns), Unit.NS) for how in (min, max))
        notes.append(f"median of {len(lengths_ns)} steps ({low if low == high else f'{low} to {high}'})")
    cut_steps = np.array(context.tables.cut_steps, np.int64)
    cut_steps = cut_steps[context.selection.takes_steps(cut_steps)]
    if len(cut_steps) and not context.tables.selects(context.selection, cut_steps).any():
        notes.append(f"without step {spans(cut_steps.tolist())}, cut by the end of the recording")
    if unusual := len(job) - len(ordinary):
        notes.append(f"{counted(unusual, 'outlier')} excluded")
    between = figures.overall("step_spread")
    if between is not None and len(figures.along("step_time", "rank")) > 1:
        notes.append(f"spread across ranks {quantity(between, Unit.FRACTION)}")
    if note := unlike_rank_steps(figures):
        notes.append(note)
    if context.unrecorded_step_ns:
        notes.append(f"mean without recording {quantity(context.unrecorded_step_ns, Unit.NS)}")
    return KeyFigure("step", figures.overall("job_step_time"), Unit.NS, ", ".join(notes))


def unlike_rank_steps(figures: Figures) -> str:
    """Return why the job's step differs from the mean rank step, to which shares and gains refer.

    The steps of ranks that do not start together overlap, so a job's step lasts longer than each rank's. If it is
    shorter, the median step is shorter than the mean.
    """
    step, rank_step = figures.overall("job_step_time"), figures.overall("step_time")
    if not step or not rank_step or abs(rank_step / step - 1) <= NOTABLE:
        return ""
    overlap = "first start to last end; " if rank_step < step else ""
    return f"{overlap}mean rank step {quantity(rank_step, Unit.NS)}"


def _exposed(figures: Figures) -> KeyFigure | None:
    """Sum the exposed communication of all axes; these parts of the step do not overlap."""
    exposed = {axis: value for axis, value in figures.along("exposed_comm_time", "axis").items() if value is not None}
    step = sum(value for _, _, value in parts(figures))
    if not exposed or not step:
        return None
    total = sum(exposed.values())
    span = "window" if figures.cover_a_window else "step"
    note = f"{quantity(total / step, Unit.FRACTION)} of the mean rank {span}"
    if total and len(exposed) > 1:
        note += f", most on {axis_words(max(axes_in_order(exposed), key=lambda axis: exposed[axis]))}"
    return KeyFigure("exposed comm", total, Unit.NS, note)


def _tokens(context: Context) -> KeyFigure | None:
    value, ranks = context.figures.overall("tokens_per_second"), context.run.world_size
    if value is None:
        return None
    notes = [f"{quantity(value / ranks, Unit.PER_SECOND)} per rank"] if ranks else []
    job_step, rank_step = context.figures.overall("job_step_time"), sum(part for _, _, part in parts(context.figures))
    if job_step and abs(rank_step / job_step - 1) > NOTABLE:
        # A job's step lasts from its first rank's start to its last rank's end, so the steps of a pipeline overlap.
        notes.append(f"over the mean rank step of {quantity(rank_step, Unit.NS)}")
    return KeyFigure("tokens", value, Unit.PER_SECOND, ", ".join(notes))


def _mfu_second(context: Context) -> str:
    hfu = context.figures.overall("hfu")
    result = context.results.get("mfu")
    if result is None:
        return ""
    if context.figures.overall("mfu") is None:
        refused = [row for row in impossible(result.values()) if row.detail.startswith("mfu ")]
        return refused[0].detail if refused else _why_no_mfu(result.notes)
    notes = [f"{convention} convention"] if (convention := getattr(result, "convention", "")) else []
    if peak := getattr(result, "peak", 0):
        notes.append(f"peak {quantity(peak, Unit.FLOP_PER_SECOND)} {getattr(result, 'precision', '')}".rstrip())
    if hfu is not None:
        notes.append(f"HFU {quantity(hfu, Unit.FRACTION)}")
    return ", ".join(notes)


def _why_no_mfu(rows: Sequence[HealthRow]) -> str:
    """Return the first missing input: without a model, the peak does not help."""
    missing = {row.code: row.detail for row in reversed(rows)}
    first = next((missing[code] for code in _MFU_NEEDS if code in missing), "") or next(iter(missing.values()), "")
    return f"unknown: {first}" if first else "unknown"


def _bubble(context: Context) -> KeyFigure | None:
    """Build the bubble with its ideal and textbook values; a single stage has none."""
    figures = context.figures
    measured = figures.overall("bubble_fraction")
    stages = {stage for stage, _ in figures.grid("stage_time", "stage", "kind")}
    if measured is None or len(stages) == 1:
        return None
    against = [
        f"{name} {quantity(value, Unit.FRACTION)}"
        for name, metric in (("ideal", "bubble_ideal_fraction"), ("textbook", "bubble_textbook_fraction"))
        if (value := figures.overall(metric)) is not None
    ]
    return KeyFigure(
        "bubble", measured, Unit.FRACTION, ", ".join([f"of the pipeline window{_idle_part(context)}", *against])
    )


def _idle_part(context: Context) -> str:
    """Return how much of the bubble the bar shows as idle, if other parts of the step are in the bubble, too."""
    pipeline = context.results.get("pipeline")
    cells = pipeline.cells if isinstance(pipeline, PipelineResult) else ()
    if not cells:
        return ""
    bubble_ns = sum(cell.window_ns - cell.busy_ns for cell in cells) / len(cells)
    window_ns = sum(cell.window_ns for cell in cells) / len(cells)
    idle_ns = context.figures.at("idle_time", cause="bubble") or 0
    if bubble_ns - idle_ns <= NOTABLE * window_ns:
        return ""
    label = label_of("idle:bubble")
    return f" ({quantity(bubble_ns, Unit.NS)}, {quantity(idle_ns, Unit.NS)} of it {label})"


def _slowdown(context: Context) -> KeyFigure | None:
    """Build the job slowdown, with the reason where it is unknown, uncertain, or not explained by a late rank."""
    ideal = context.ideal
    if ideal is None:
        return None
    if ideal.unknown:
        return KeyFigure("job slowdown", None, Unit.RATIO, f"unknown: {ideal.unknown}")
    notes = ["vs. all ranks performing like their peers"]
    if ideal.loss_fraction > LEAST_LOSS and not ideal.is_loss:
        notes.append(f"the difference is within the replay's error of ±{quantity(ideal.error_fraction, Unit.FRACTION)}")
    elif ideal.is_loss and not _is_explained(context.figures, ideal):
        notes.append(_cause_of_variation(context, ideal))
    return KeyFigure("job slowdown", ideal.slowdown, Unit.RATIO, "; ".join(notes))


def _is_explained(figures: Figures, ideal: IdealStep) -> bool:
    """Return whether repairing one late rank saves most of the loss."""
    best = max(figures.along("repair_gain", "rank").values(), default=0.0)
    return best >= _MOST * ideal.loss_fraction


def _cause_of_variation(context: Context, ideal: IdealStep) -> str:
    """Name the axis whose unequal transfers cause most of the loss, or the absence of a single cause."""
    from usp_prof.whatif.attribution import part_of_loss  # noqa: PLC0415 - the replay is loaded only if it is asked

    exposed = context.figures.along("exposed_comm_time", "axis")
    if exposed:
        axis = max(sorted(exposed), key=lambda name: exposed[name])
        part = part_of_loss(context.tables, ideal, "axis", str(axis))
        if part is not None and part.share >= _MOST:
            share = quantity(part.share, Unit.FRACTION)
            return f"transfers on {axis} beyond their median cause {share} of the loss"
    return "no single rank causes most of it"


def worst_ranks(figures: Figures) -> list[Key]:
    """Return the ranks that are latest, compute slower than their peers, or delay others in messages, worst first."""
    step = figures.rank_step_ns
    cost, slowdown, gain = (figures.along(metric, "rank") for metric in ("straggler_cost", "slowdown", "repair_gain"))
    bad = {rank for rank, value in cost.items() if value > step * NOTABLE}
    bad |= {rank for rank, value in slowdown.items() if value > 1 + NOTABLE}
    bad |= {rank for rank, value in gain.items() if value > NOTABLE and rank in (cost or gain)}
    lost = {rank: max(cost.get(rank, 0), step * gain.get(rank, 0)) for rank in bad}
    return sorted(bad, key=lambda rank: (-lost[rank], -slowdown.get(rank, 1), rank))


def _worst_ranks(context: Context) -> DataTable | None:
    """Build the table of the worst ranks, and what their repair saves."""
    figures, stragglers = context.figures, context.results.get("stragglers")
    axis_of_rank = {culprit.rank: culprit.axis for culprit in getattr(stragglers, "culprits", ())}
    cost, slowdown, gain = (figures.along(metric, "rank") for metric in ("straggler_cost", "slowdown", "repair_gain"))
    worst = worst_ranks(figures)
    if not worst:
        return None
    late_by_axis = {rank: figures.along("late_fraction", "axis", rank=rank) for rank in worst}
    for rank, late in late_by_axis.items():
        axis_of_rank.setdefault(rank, max(late, key=lambda axis: late[axis], default=None))
    for rank in gains_in_messages(figures):  # its lateness in collectives has nothing to do with its repair
        axis_of_rank[rank] = None
        cost.pop(rank, None)
    rows = [
        (
            rank,
            axis_of_rank[rank],
            cost.get(rank),
            gain.get(rank),
            # The axis of a slow link may be one on which the rank never arrives last.
            late_by_axis[rank].get(axis_of_rank[rank]) or None,
            slowdown.get(rank),
            figures.at("compute_time", rank=rank),
            figures.at("wait_time", rank=rank),
        )
        for rank in worst
    ]
    columns = {
        "rank": None, "axis": None, "late by": Unit.NS, "repair saves": Unit.FRACTION, "arrives last": Unit.FRACTION,
        "compute slowdown": Unit.RATIO, "compute": Unit.NS, "waiting": Unit.NS,
    }  # fmt: skip
    title = f"Stragglers (ranks that others wait for), {'in the window' if figures.cover_a_window else 'per step'}"
    return without_blanks(data_table(title, columns, rows, most=_WORST_RANKS))


def lateness_and_repairs(figures: Figures) -> Text | None:
    """Explain repairs of the worst ranks that save much more or much less than the ranks are late."""
    step = figures.rank_step_ns
    cost, gain = (figures.along(metric, "rank") for metric in ("straggler_cost", "repair_gain"))
    alone = Counter(gain.values())  # ranks with equal gains have one repair, which evens out their work
    differing = [
        saved - late
        for rank in worst_ranks(figures)[:_WORST_RANKS]
        if rank in gain and (alone[gain[rank]] == 1 or not gain[rank])
        for late, saved in [(cost.get(rank, 0), step * gain[rank])]
        if abs(saved - late) > max(NOTABLE * step, _MOST * max(saved, late))
    ]
    sentences = []
    if any(difference < 0 for difference in differing):
        sentences.append("A repair saves less than a rank is late if other ranks are late next or the rank catches up.")
    if any(difference > 0 for difference in differing):
        sentences.append(
            "A repair saves more if the rank also delays sends, receives or other axes, which lateness leaves out."
        )
    return Text(" ".join(sentences), quiet=True) if sentences else None


def _findings(context: Context) -> Findings | None:
    """Build the most important causes; without any, the block exists only if the rules ran."""
    if not context.findings and "stragglers" not in context.results:
        return None
    causes = causes_of(context.findings)
    title = "Findings, most important first" if len(causes.shown) > 1 else "Findings"
    unasked = skipped_sentence(context.health)
    nothing = "" if context.findings else _straggler_without_finding(context.figures)
    if unasked and not (context.findings or nothing):
        nothing = "none from the rules that ran"
    return Findings(causes.shown, causes.more, len(causes.noise), title=title, nothing=nothing, unasked=unasked)


def _straggler_without_finding(figures: Figures) -> str:
    """Name the rank that the others wait for, and what its repair saves: too little for a finding, or unknown."""
    cost = figures.along("straggler_cost", "rank")
    step = figures.rank_step_ns
    rank = max(cost, key=lambda key: (cost[key], str(key)), default=None)
    if rank is None or cost[rank] <= step * NOTABLE:
        return ""
    late, gain = quantity(cost[rank], Unit.NS), figures.along("repair_gain", "rank").get(rank)
    if gain is None:
        return f"rank {rank} delays the others by {late}; what its repair saves is unknown"
    saved = quantity(gain, Unit.FRACTION)
    return f"none: rank {rank} arrives last by {late} per step, but its repair saves only {saved} of the step"


def _health(context: Context) -> Health:
    """Build the worst few kinds of damage, on all ranks; notes are only counted."""
    kinds = {(row.severity, row.code, row.detail) for row in context.health}
    bad = sorted(kind for kind in kinds if kind[0] is not Severity.INFO)
    shown = set(sorted(bad, key=lambda kind: (kind[0] is not Severity.DATA_LOSS, kind))[:_TOP_HEALTH])
    rows = [row for row in context.health if (row.severity, row.code, row.detail) in shown]
    rows.sort(key=lambda row: (row.severity is not Severity.DATA_LOSS, row))
    return Health(tuple(rows), len(kinds) - len(shown))
