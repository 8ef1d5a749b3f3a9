"""Figures of the first screen that seem to contradict each other: the screen says how they fit together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_training import Delay, Job

from usp_prof.analyses import step_time, stragglers
from usp_prof.model.finding import REPAIR_GAIN
from usp_prof.model.metric import Metric, Value
from usp_prof.model.selection import Selection
from usp_prof.replay.step_times import unedited
from usp_prof.report.build import analyze, build
from usp_prof.report.document import DataTable, Document, KeyFigures, Stack, Text
from usp_prof.report.figures import Figures
from usp_prof.report.format import quantity
from usp_prof.report.sections.summary import lateness_and_repairs, unlike_rank_steps, worst_ranks
from usp_prof.report.verdict import gains_in_messages
from usp_prof.run import open_run

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

TRACES = Path(__file__).parents[2] / "traces"


def document_of(tables: TableSet) -> Document:
    return build(tables, analyze(tables), name="run")


def blocks(document: Document, kind: type) -> list[Any]:
    return [block for block in document.summary.blocks if isinstance(block, kind)]


def test_the_bubble_states_how_much_of_it_the_bar_shows_as_idle(tmp_path: Path) -> None:
    """Ranks that finish early wait in a collective, which the bar shows as exposed communication."""
    document = document_of(open_run(TRACES / "recorded-1f1b", cache_dir=tmp_path).tables)
    (stack,) = blocks(document, Stack)
    (idle,) = (quantity(part.value, stack.unit) for part in stack.parts if part.role == "idle:bubble")
    (figures,) = blocks(document, KeyFigures)
    (bubble,) = (figure for figure in figures.figures if figure.label == "bubble")
    assert f"{idle} of it idle: pipeline" in bubble.second


def test_all_figures_of_the_screen_leave_out_a_cut_step(tmp_path: Path) -> None:
    """The last step lacks the wait for input with which the others end: it is 44.1 ms instead of 60.0 and 76.4 ms."""
    run = open_run(TRACES / "gpu-late-input", cache_dir=tmp_path)
    document = build(run.tables, analyze(run.tables), name="run")
    (figures,) = blocks(document, KeyFigures)
    step, model_flops = figures.figures[:2]
    assert step.value == pytest.approx(unedited(run.tables).mean_measured_ns)
    assert "without step 29, cut by the end of the recording" in step.second
    assert model_flops.value == pytest.approx(0.300, abs=0.0005)
    (stack,) = blocks(document, Stack)
    assert sum(part.value for part in stack.parts) == pytest.approx(step.value, rel=0.01)
    assert document.run.steps == (27, 28)
    selected = Selection(first_step=27, last_step=29)
    with_last = build(run.tables, analyze(run.tables, selected), name="run", selection=selected)
    (figures,) = blocks(with_last, KeyFigures)
    assert "median of 3 steps" in figures.figures[0].second


def test_a_rank_late_in_messages_has_no_lateness_in_collectives(tmp_path: Path) -> None:
    job = Job("ring", 761_594)
    job.simulate(Delay("late_messages", 3, 9_900), 822_740)
    job.write(tmp_path / "ring")
    document = document_of(open_run(tmp_path / "ring", cache_dir=tmp_path / "cache").tables)
    (ranks,) = (table for table in blocks(document, DataTable) if table.title.startswith("Stragglers"))
    heads = [column.head for column in ranks.columns]
    assert ranks.rows[0][heads.index("rank")] == 3
    assert "axis" not in heads
    assert "late by" not in heads
    assert any("lateness leaves out" in text.text for text in blocks(document, Text))


@pytest.mark.parametrize(
    ("late_ns", "gain", "explained"),
    [(200e6, 0.01, "saves less"), (60e6, 0.3, "saves more"), (200e6, 0.18, ""), (10e6, 0.0, "")],
)
def test_repairs_unlike_lateness_are_explained(late_ns: float, gain: float, explained: str) -> None:
    def values(metric: Metric, value: float) -> list[Value]:
        return [Value(metric, value, {"rank": 0})]

    measured = [
        Value(step_time.STEP_TIME, 1e9),
        *values(stragglers.STRAGGLER_COST, late_ns),
        *values(REPAIR_GAIN, gain),
    ]
    text = lateness_and_repairs(Figures(measured))
    assert (text is None) == (not explained)
    assert text is None or explained in text.text


def test_ranks_that_share_one_repair_are_not_late_elsewhere() -> None:
    """Their lengths are evened out together, so that each has the gain of all."""
    costs = [Value(stragglers.STRAGGLER_COST, late_ns, {"rank": rank}) for rank, late_ns in enumerate((150e6, 30e6))]
    gains = [Value(REPAIR_GAIN, 0.17, {"rank": rank}) for rank in (0, 1)]
    assert lateness_and_repairs(Figures([Value(step_time.STEP_TIME, 1e9), *costs, *gains])) is None


@pytest.mark.parametrize(
    ("job_ns", "rank_ns", "note"),
    [
        (30.4e6, 25.1e6, "first start to last end; mean rank step 25.1 ms"),
        (210e6, 247e6, "mean rank step 247 ms"),
        (20.4e6, 20.3e6, ""),
    ],
)
def test_a_job_step_unlike_the_mean_rank_step_is_explained(job_ns: float, rank_ns: float, note: str) -> None:
    figures = Figures([Value(step_time.JOB_STEP_TIME, job_ns), Value(step_time.STEP_TIME, rank_ns)])
    assert unlike_rank_steps(figures) == note


def test_ranks_outside_the_selection_are_not_listed() -> None:
    """Repairs are those of all ranks, but lateness is that of the selected ones."""
    measured = [
        Value(step_time.STEP_TIME, 1e9),
        Value(stragglers.STRAGGLER_COST, 150e6, {"rank": 1}),
        *(Value(REPAIR_GAIN, 0.1, {"rank": rank}) for rank in (0, 1)),
    ]
    assert worst_ranks(Figures(measured)) == [1]
    assert not gains_in_messages(Figures(measured))


def test_no_rank_is_named_for_lateness_of_zero(tmp_path: Path) -> None:
    document = document_of(open_run(TRACES / "recorded-1f1b", cache_dir=tmp_path).tables)
    (section,) = (section for section in document.sections if section.id == "stragglers")
    (late,) = (
        figure
        for block in section.blocks
        if isinstance(block, KeyFigures)
        for figure in block.figures
        if figure.label == "Cost of being late"
    )
    assert late.value == 0
    assert not late.second.startswith("rank")
