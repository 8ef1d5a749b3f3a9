"""Pages on sections of the report: communication, pipeline, kernels, host, memory.

Each page starts with its sentence and its picture; the sections are folded below. Pipeline adds other schedules, and
memory adds the planner's prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import streamlit as st

from usp_prof import UspProfError
from usp_prof.analyses.kernels import compute as kernels_of
from usp_prof.api import sentences
from usp_prof.charts.inputs import AxisCommunication, LaunchLines, MemoryLines, PipelineSchedule, RooflinePoints
from usp_prof.extras.planner.answers import plan as plan_answer
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.model.edit import Edit
from usp_prof.model.metric import Unit
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import Chart, Document, Health, KeyFigures, Stack, StackPart, Text
from usp_prof.report.figures import Figures, Key, Number
from usp_prof.schedule import Schedule
from usp_prof.whatif.rescheduled import reschedule

from .. import data, served_runs, state
from ..answers import pictures, verdicts
from ..components.blocks import fold_sections, folded, picking_figure, show, show_all, verdict
from ..components.choices import choose_word, type_integer
from ..components.picked_op import picked_op
from ..components.question import calibration_of
from ..components.timeline import timeline
from ..report import offer
from ..state import Page, Room, View
from ..work import wait

AS_IT_IS = "as recorded"
CALLS_PX, AROUND_PX, LANE_PX, GAP_PX = 360, 70, 20, 14
"""Largest height of the calls, and what their axis, a lane and the gap below a group take."""
MOST_MICRO_BATCHES = 256


def lacking(sections: Sequence[str], otherwise: str) -> Callable[[Document], str]:
    """Return a function that returns `otherwise` if these sections contain only remarks."""

    def lacks(document: Document) -> str:
        parts = [part for part in document.sections if part.id in sections]
        has_content = any(
            not (isinstance(block, Text) and block.quiet) and not isinstance(block, Health)
            for part in parts
            for block in part.blocks
        )
        return "" if has_content else otherwise

    return lacks


def opened(page: Page, sentence: Callable[[Document], str] | None = None) -> tuple[View, Document]:
    """Draw the page's sentence, or why there is nothing to show; return the selection and its report."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    verdict((sentence or verdicts.OF_PAGE[page.path])(document))
    if why := page.lacks(document):
        st.info(why)
    return view, document


def key_figures(document: Document, section: str) -> None:
    """Show the key figures of a section, unless all are zero."""
    for block in pictures.blocks_of(document, section):
        if isinstance(block, KeyFigures) and any(figure.value for figure in block.figures):
            show(block, f"key-{section}")


def picture(page: str, view: View, build: Callable[[], Chart | None]) -> Chart | None:
    """Draw the page's picture."""
    chart = wait(data.ask_made((page, view.selection), build, view.run))
    if chart is not None:
        show(chart, f"picture-{page}")
    return chart


def folds(document: Document, sections: Sequence[str], *shown: Chart | None, figures_of: str = "") -> None:
    """Fold the sections below the pictures, without the pictures and the key figures that are shown already."""
    shown_data = [chart.data for chart in shown if chart is not None]
    same = [
        block
        for name in sections
        for block in pictures.blocks_of(document, name)
        if (isinstance(block, Chart) and any(block.data is data for data in shown_data))
        or (isinstance(block, KeyFigures) and name == figures_of)
    ]
    fold_sections(document, sections, without=same)


# Communication: calls by group, bandwidth by axis, and the ranks that others wait for.


def draw_communication() -> None:
    """Draw the bandwidth and the cost of each axis, the late ranks, and the calls of each group over time."""
    view, document = opened(COMMUNICATION)
    bandwidth = pictures.bandwidth_of_axes(document)
    if bandwidth is not None:
        show(bandwidth, "bandwidth")
        if remark := pictures.unknown_links(document):
            st.caption(remark)
    axes = wait(data.ask_made(("axes", view.selection), lambda: pictures.axes_by_exposure(document), view.run))
    late = pictures.late_ranks(document)
    blocks = [block for block in (axes, late) if block is not None]
    for place, block in zip(st.columns(len(blocks), gap="medium") if blocks else (), blocks, strict=True):
        with place:
            show(block, f"axes-{type(block).__name__}")
            if block is axes and any(axes.data.contended_ns):
                st.caption(
                    "Contended: several axes communicate at once, and the time counts for the one that ends last."
                )
    _calls(view, document)
    folds(document, COMMUNICATION_SECTIONS, pictures.chart_of(document, AxisCommunication))


def _calls(view: View, document: Document) -> None:
    """Show the calls of each group over time; the axis that the page's sentence names comes first."""
    store = wait(data.ask_calls(view.run))
    if not store.ranks:
        return
    count, lanes = len(store.ranks), sum(len(store.rows(group)) for group in store.ranks)
    groups = f"{count} groups" if count > 1 else "one group"
    st.markdown(f"**Calls of {groups} over time**, most exposed axis first, then longest waits")
    bubble = " On pp, gray includes the pipeline bubble." if verdicts.PIPELINE in exposed_axes(document) else ""
    st.caption(
        "Gray: waiting for the last rank, which is named unless others delayed it. Color: transfer. Hover for more."
        + bubble
    )
    timeline(
        f"{served_runs.source(view.run)}&of=calls", key="calls", kinds=[], fixed=True,
        height=min(CALLS_PX, AROUND_PX + LANE_PX * lanes + GAP_PX * count),
        ranks=most_exposed_first(store.labels, document),
    )  # fmt: skip


def most_exposed_first(labels: Mapping[int, str], document: Document) -> list[int]:
    """Sort groups by the exposed time of their axis, with which their labels start."""
    exposed = exposed_axes(document)
    return sorted(labels, key=lambda group: -exposed.get(labels[group].partition(" ")[0], 0.0))


def exposed_axes(document: Document) -> Mapping[Key, Number]:
    """Return the exposed time of each axis."""
    return Figures(document.values).along("exposed_comm_time", "axis")


COMMUNICATION_SECTIONS = ("overlap", "collectives", "moe", "cp")
COMMUNICATION = Page(
    "Communication", "communication", draw_communication, Room.DIAGNOSE,
    lacking(COMMUNICATION_SECTIONS, "No communication was recorded."),
)  # fmt: skip


# Pipeline: the schedule as it ran, its bubble and the ideal, other schedules.


def draw_pipeline() -> None:
    """Draw the parts of the bubble, the schedule as it ran, and the actions under another schedule."""
    view, document = opened(PIPELINE)
    causes = by_cause(document)
    if causes is not None:
        show(causes, "causes")
    schedules = pictures.charts_of_kind(document, PipelineSchedule)
    for number, schedule in enumerate(schedules):
        show(schedule, f"schedule-{number}")
    if schedules:
        st.caption("Numbers are micro-batches.")
    chosen = state.word("schedule", (AS_IT_IS, *(str(schedule) for schedule in Schedule))) != AS_IT_IS
    if causes is not None and chosen:
        st.subheader("Another schedule", anchor="another")
        _another(view)
    elif causes is not None:
        folded("another", "Another schedule", lambda: _another(view))
    folds(document, ("pipeline",), *schedules)


def by_cause(document: Document) -> Stack | None:
    """Divide the pipeline window: cost of the schedule, of uneven stages and of delays, and the actions."""
    value_of_metric = {value.metric.id: float(value.value) for value in document.values if not value.dims}
    measured = value_of_metric.get("bubble_fraction")
    if measured is None:
        return None
    even = min(value_of_metric.get("bubble_balanced_fraction", 0.0), measured)
    ideal = min(max(value_of_metric.get("bubble_ideal_fraction", even), even), measured)
    parts = (
        StackPart("bubble of the schedule", "idle:bubble", even),
        StackPart("uneven stages", "action:W", ideal - even),
        StackPart("late actions, transfers and host", "comm", measured - ideal),
        StackPart("pipeline actions", "compute", 1 - measured),
    )
    return Stack("Pipeline window, mean over steps", 1.0, Unit.FRACTION, parts)


def _another(view: View) -> None:
    """Redraw the pipeline under another schedule, with the measured length of each action."""
    left, middle, right = st.columns([2, 1, 1])
    names = (AS_IT_IS, *(str(schedule) for schedule in Schedule))
    name = choose_word("Schedule", "schedule", names, place=left)
    with middle:
        passes = type_integer("Micro-batches (0: as recorded)", "m", 0, MOST_MICRO_BATCHES, 0)
    with right:
        chunks = type_integer("Stages per rank (0: default)", "v", 0, 8, 0)
    if name == AS_IT_IS:
        st.caption("Choose a schedule to see the measured actions in its order.")
        return
    places = [("m", str(passes))] * bool(passes) + [("v", str(chunks))] * bool(chunks)
    edit = Edit("schedule", name, tuple(places))
    try:
        tables = data.open_numbered(view.run).tables
        rescheduled = wait(data.ask_made(("schedule", edit), lambda: reschedule(tables, (edit,)), view.run))
    except UspProfError as error:
        st.warning(state.plain(f"{error.message}. {error.hint or ''}"))
        return
    schedule_section = whatif_answer.schedule_section(edit, rescheduled)
    show_all(schedule_section.blocks, "another")
    offer(PIPELINE, view.run, str(edit), lambda: (schedule_section,))


PIPELINE = Page(
    "Pipeline", "pipeline", draw_pipeline, Room.DIAGNOSE,
    lacking(("pipeline",), "This run has no pipeline, or its traces do not show the actions."),
)  # fmt: skip


# Memory: usage over time and by use, measured and predicted by the planner.


def draw_memory() -> None:
    """Draw memory over time with the predicted peak and the capacity; without a recording, the predicted parts."""
    calibration, reason = calibration_of(state.current().run)
    view, document = opened(MEMORY, partial(verdicts.memory, calibration=calibration))
    key_figures(document, "memory")
    curve = picture("memory", view, lambda: pictures.memory_over_time(document, calibration))
    if calibration is not None and curve is None:
        _predicted(view, calibration)
    elif calibration is not None:
        folded("predicted", "Predicted memory of each pipeline rank, by part", lambda: _predicted(view, calibration))
    elif not MEMORY.lacks(document):
        st.caption(state.plain(f"Memory is not predicted: {reason}. Plan predicts it for a model that you choose."))
    figures = Figures(document.values)
    is_measured = figures.overall("taken_memory") is not None or figures.along("peak_memory", "rank")
    if calibration is not None and not is_measured:  # without a prediction the page's sentence says it
        st.caption("To measure it, record with `profile_memory=True`, or put memory snapshots next to the traces.")
    folds(document, ("memory",), pictures.chart_of(document, MemoryLines), figures_of="memory")


def _predicted(view: View, calibration: Calibration) -> None:
    predicted = wait(data.ask_made("memory", lambda: plan_answer.predicted_memory(calibration), view.run))
    show_all(predicted.blocks, "memory-predicted")


def _no_memory(document: Document) -> str:
    """Return why neither a measured nor a predicted peak can be shown."""
    figures = Figures(document.values)
    if document.run.model or any(figures.has(metric) for metric in ("peak_memory", "taken_memory")):
        return ""
    return "The model is unknown, so memory cannot be predicted either. Plan predicts it for a model that you choose."


MEMORY = Page("Memory", "memory", draw_memory, Room.DIAGNOSE, _no_memory)


# Kernels, host.


def draw_kernels() -> None:
    """Draw device time and the roofline by op; a click on an op shows its calls."""
    view = state.current()
    tables = data.open_numbered(view.run).tables
    made = data.ask_made(
        ("ops", view.selection), lambda: sentences.time_of_ops(kernels_of(tables, view.selection).ops), view.run
    )
    times = wait(made)
    view, document = opened(
        KERNELS,
        lambda shown: verdicts.kernels(shown, times, has_roofline=pictures.chart_of(shown, RooflinePoints) is not None),
    )
    drawing_job = data.ask_made(("kernels", view.selection), lambda: pictures.of_kernels(document, times), view.run)
    charts = wait(drawing_job)
    for number, chart in enumerate(charts):
        picking_figure(chart, key=f"picture-kernels-{number}", on_pick=partial(state.keep, "op"))
    if charts:
        picked_op(view, document, charts)
    roofline = pictures.chart_of(document, RooflinePoints)
    if roofline is None and charts:
        is_peak_known = Figures(document.values).overall("kernel_efficiency") is not None
        missing = (
            "the memory bandwidth of the device is" if is_peak_known else "FLOPs of ops, or the device's peaks, are"
        )
        st.caption(f"No roofline chart: {missing} unknown.")
    for block in pictures.blocks_of(document, "kernels") if roofline is None else ():
        if isinstance(block, Health):
            show(block, "why-no-roofline")
    folds(document, KERNELS_SECTIONS, roofline)


def draw_host() -> None:
    """Draw which devices wait for their host, or how far hosts run ahead."""
    view, document = opened(HOST)
    key_figures(document, "host")
    tables = data.open_numbered(view.run).tables
    shown = picture("host", view, lambda: pictures.of_host(document, tables))
    launched = Figures(document.values).overall("empty_queue_fraction") is not None
    if launched and shown is not None and not isinstance(shown.data, LaunchLines):
        picture("lead", view, lambda: pictures.launch_lead(document, tables))
    folds(document, ("host",), figures_of="host")


KERNELS_SECTIONS = ("kernels", "mfu")
KERNELS = Page(
    "Kernels", "kernels", draw_kernels, Room.DIAGNOSE, lacking(KERNELS_SECTIONS, "No kernels were recorded.")
)
HOST = Page("Host", "host", draw_host, Room.DIAGNOSE, lacking(("host",), "No host activity was recorded."))
