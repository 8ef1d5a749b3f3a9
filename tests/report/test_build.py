"""Report building, from real analyses of synthetic tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import made
import pytest
from made import step, work
from papers import FINDING

from usp_prof.analyses import NAMES
from usp_prof.analyses.measures.flop_check import Part
from usp_prof.analyses.mfu import MfuResult
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import JOB_SLOWDOWN, REPAIR_GAIN, Found
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values, sound
from usp_prof.model.selection import Selection
from usp_prof.report import sections
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Chart, DataTable, Document, Findings, Health, KeyFigure, KeyFigures, Stack
from usp_prof.report.writers import json_text, markdown, webpage

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.tables.table_set import TableSet

BEGIN = 1_700_000_000_000_000_000
MS = 1_000_000


def rank(number: int, steps: int = 3) -> dict[str, list[made.Row]]:
    """Make 10 ms steps: compute grows with the rank, tp is half hidden, dp exposed."""
    activities, windows = [], []
    for at in range(steps):
        begin = BEGIN + at * 10 * MS
        windows.append(step(at, begin, begin + 10 * MS))
        activities += [
            work("compute", begin, begin + (5 + number) * MS, step=at, name="gemm", lane="stream 7"),
            work("communication", begin + 4 * MS, begin + 7 * MS, "tp", step=at, name="nccl", lane="stream 20"),
            work("communication", begin + 7 * MS, begin + 8 * MS, "dp", step=at, name="nccl", lane="stream 21"),
            work("memcpy", begin + 9 * MS, begin + 9 * MS + 200_000, step=at, name="copy", lane="stream 7"),
        ]
    return {"activities": activities, "steps": windows}


@pytest.fixture(scope="module")
def tables() -> TableSet:
    return made.run({0: rank(0), 1: rank(1)})


@pytest.fixture(scope="module")
def document(tables: TableSet) -> Document:
    return build(tables, analyze(tables), name="made")


def blocks(document: Document, section: str, kind: type) -> list[object]:
    (wanted,) = (candidate for candidate in document.sections if candidate.id == section)
    return [block for block in wanted.blocks if isinstance(block, kind)]


def test_the_bar_is_the_mean_partition_and_adds_up(document: Document) -> None:
    (stack,) = (block for block in document.summary.blocks if isinstance(block, Stack))
    assert {part.role: part.value for part in stack.parts} == {
        "compute": 5.5 * MS,
        "comm:dp": 1 * MS,
        "comm:tp": 1.5 * MS,
        "memcpy": 0.2 * MS,
        "idle:other": 1.8 * MS,
    }
    assert stack.total == 10 * MS


def test_the_first_screen_has_the_step_and_the_axes(document: Document) -> None:
    (figures,) = (block for block in document.summary.blocks if isinstance(block, KeyFigures))
    assert figures.figures[0].label == "step"
    assert figures.figures[0].value == 10 * MS
    table = next(block for block in document.summary.blocks if isinstance(block, DataTable))
    assert [row[:4] for row in table.rows] == [("dp", 1 * MS, 1 * MS, 0.0), ("tp", 3 * MS, 1.5 * MS, 1.5 * MS)]


def test_each_rank_has_its_bar_and_row(document: Document) -> None:
    (chart,) = blocks(document, "breakdown", Chart)
    assert isinstance(chart, Chart)
    assert chart.data.labels == ("rank 0", "rank 1")
    assert chart.data.parts[0].values_ns == (5 * MS, 6 * MS)
    table = blocks(document, "breakdown", DataTable)[0]
    assert isinstance(table, DataTable)
    assert table.rows[1][1] == 6 * MS


def test_steps_have_a_table_and_a_map(document: Document) -> None:
    (chart,) = blocks(document, "step_time", Chart)
    assert isinstance(chart, Chart)
    assert chart.data.values_ns.tolist() == [[5 * MS] * 3, [6 * MS] * 3]
    table = blocks(document, "step_time", DataTable)[0]
    assert isinstance(table, DataTable)
    assert [row[0] for row in table.rows] == [0, 1, 2]


def test_the_timeline_has_a_row_for_compute_and_each_axis(document: Document) -> None:
    (chart,) = blocks(document, "timeline", Chart)
    assert isinstance(chart, Chart)
    assert chart.data.rows == ("rank 0", "rank 0 dp", "rank 0 tp", "rank 1", "rank 1 dp", "rank 1 tp")
    assert set(chart.data.roles) == {"compute", "comm:tp", "comm:dp", "memcpy"}
    assert chart.data.start_ns.min() == 0
    assert chart.title == "Step 1 on all ranks"


def test_many_ranks_share_one_communication_row_each() -> None:
    tables = made.run({number: rank(number % 4, 1) for number in range(30)})
    document = build(tables, analyze(tables), name="many")
    (chart,) = blocks(document, "timeline", Chart)
    assert isinstance(chart, Chart)
    assert chart.data.rows[:3] == ("rank 0", "rank 0 comm", "rank 1")


def test_a_report_covers_only_its_selection(tables: TableSet) -> None:
    selection = Selection(ranks=(1,), first_step=1, last_step=1)
    document = build(tables, analyze(tables, selection), name="made", selection=selection)
    assert document.run.ranks == (1,)
    assert document.run.steps == (1,)
    assert {value.dims.get("rank", 1) for value in document.values}  # noqa: PD011 - no frame == {1}


def test_a_subset_of_analyses_can_be_requested(tables: TableSet) -> None:
    results = analyze(tables, only=["breakdown"])
    assert list(results) == ["breakdown"]
    document = build(tables, results, name="made")
    assert {section.id for section in document.sections} == {"breakdown", "health"}
    with pytest.raises(UsageError, match="no analysis is named"):
        analyze(tables, only=["breakdwon"])


def test_every_analysis_reports_progress(tables: TableSet) -> None:
    names: list[str] = []
    analyze(tables, progress=names.append)
    assert tuple(names) == NAMES


def test_the_document_is_written_in_every_format(document: Document) -> None:
    jsonschema.validate(json.loads(json_text.write(document)), json_text.json_schema())
    assert "exposed tp" in markdown.write(document)
    assert "Where each rank" in webpage.write([document])


def test_empty_tables_are_accepted() -> None:
    tables = made.run({0: {}})
    document = build(tables, analyze(tables), name="empty")
    assert document.run.steps == ()
    assert document.run.devices == ()
    json_text.write(document)


def test_metric_ids_are_declared_once() -> None:
    declared = [metric.id for name in NAMES for metric in import_module(f"usp_prof.analyses.{name}").METRICS]
    declared += [JOB_SLOWDOWN.id, REPAIR_GAIN.id]
    assert len(declared) == len(set(declared))


@dataclass(frozen=True)
class GivenResult:
    """Result of an analysis with given contents."""

    given_values: tuple[Value, ...] = ()
    notes: tuple[HealthRow, ...] = ()
    rows: tuple[tuple[str, int], ...] = ()

    def values(self) -> Values:
        return sound(self.given_values)

    def to_pandas(self) -> pd.DataFrame:
        import pandas as pd  # noqa: PLC0415

        return pd.DataFrame(list(self.rows), columns=["name", "time_ns"])


def value(metric: str, number: float, unit: Unit = Unit.NS, **dims: int | str) -> Value:
    return Value(Metric(metric, unit, Better.LOWER, metric.title(), "x"), number, dims)


def test_given_findings_are_shown_first(tables: TableSet) -> None:
    document = build(tables, {}, name="x", search_result=Found((FINDING,), ()))
    assert document.findings == (FINDING,)
    assert any(isinstance(block, Findings) for block in document.summary.blocks)
    assert document.sections[0].id == "findings"


def test_missing_findings_are_stated_only_if_rules_ran(tables: TableSet) -> None:
    looked = build(tables, analyze(tables, only=["stragglers"]), name="x")
    assert Findings(()) in looked.summary.blocks
    blind = build(tables, analyze(tables, only=["breakdown"]), name="x")
    assert Findings(()) not in blind.summary.blocks


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((), "rank 1 delays the others by 9.00 ms; what its repair saves is unknown"),
        (
            (value("repair_gain", 0.019, Unit.FRACTION, rank=1),),
            "none: rank 1 arrives last by 9.00 ms per step, but its repair saves only 1.9% of the step",
        ),
    ],
)
def test_a_late_rank_without_a_finding_is_named_with_what_its_repair_saves(
    tables: TableSet, gain: tuple[Value, ...], expected: str
) -> None:
    late = value("step_time", 100 * MS), value("straggler_cost", 9 * MS, rank=1), *gain
    results = {**analyze(tables, only=["stragglers"]), "x": GivenResult(late)}
    document = build(tables, results, name="x", search_result=Found((), ()))
    (block,) = (block for block in document.summary.blocks if isinstance(block, Findings))
    assert block.nothing == expected


def test_the_ranks_that_others_wait_for_are_listed_when_they_matter(tables: TableSet) -> None:
    slow = [value("slowdown", 1 + 0.1 * number, Unit.RATIO, rank=number) for number in range(6)]
    late = [
        value("step_time", 100 * MS),
        value("straggler_cost", 9 * MS, rank=1),
        value("straggler_cost", 1 * MS, rank=0),
        value("late_fraction", 0.5, Unit.FRACTION, rank=1, axis="tp"),
        value("late_fraction", 0.7, Unit.FRACTION, rank=1, axis="dp"),
    ]
    document = build(tables, {"x": GivenResult((*slow, *late))}, name="x")
    (table,) = (block for block in document.summary.blocks if isinstance(block, DataTable))
    assert [row[0] for row in table.rows] == [1, 5, 4]
    assert table.rows[0][:5] == (1, "dp", 9 * MS, 0.7, 1.1)
    assert table.more == 2
    assert [column.head for column in table.columns] == ["rank", "axis", "late by", "arrives last", "compute slowdown"]
    calm = build(tables, {"x": GivenResult((value("slowdown", 1.01, Unit.RATIO, rank=1),))}, name="x")
    assert not any(isinstance(block, DataTable) for block in calm.summary.blocks)


def test_the_bubble_is_shown_with_ideal_and_textbook(tables: TableSet) -> None:
    bubbles = (
        value("bubble_fraction", 0.3, Unit.FRACTION),
        value("bubble_ideal_fraction", 0.25, Unit.FRACTION),
        value("bubble_textbook_fraction", 0.2, Unit.FRACTION),
    )
    document = build(tables, {"x": GivenResult(bubbles)}, name="x")
    figures = next(block for block in document.summary.blocks if isinstance(block, KeyFigures))
    bubble = next(figure for figure in figures.figures if figure.label == "bubble")
    assert bubble.second == "of the pipeline window, ideal 25.0%, textbook 20.0%"


def test_a_single_stage_has_no_bubble(tables: TableSet) -> None:
    bubble = value("bubble_fraction", 0.01, Unit.FRACTION)
    stages = [value("stage_time", 5, stage=stage, kind=kind) for stage in (0, 1) for kind in ("F", "B")]
    for stage_times, has_bubble in ((stages[:2], False), (stages, True)):
        document = build(tables, {"x": GivenResult((bubble, *stage_times))}, name="x")
        labels = {figure.label for block in document.summary.blocks for figure in getattr(block, "figures", ())}
        assert ("bubble" in labels) is has_bubble


def mfu_figure(document: Document) -> KeyFigure:
    figures = next(block for block in document.summary.blocks if isinstance(block, KeyFigures))
    return next(figure for figure in figures.figures if figure.label == "MFU")


def test_the_missing_input_of_mfu_is_named(tables: TableSet) -> None:
    figure = mfu_figure(build(tables, analyze(tables, only=["mfu"]), name="x"))
    assert figure.value is None
    assert figure.second.startswith("unknown: no model description")


def test_the_reason_for_unknown_hfu_does_not_replace_that_for_unknown_mfu(tables: TableSet) -> None:
    notes = tuple(
        HealthRow(code, Severity.INFO, detail=f"detail of {code}") for code in ("no_device_peak", "recompute_unknown")
    )
    result = MfuResult("palm", {"palm": 1e9}, float("nan"), 1e3, {}, 2, 0.0, "bf16", "", (), notes)
    assert mfu_figure(build(tables, {"mfu": result}, name="x")).second == "unknown: detail of no_device_peak"


def test_mfu_names_its_convention_and_its_peak(tables: TableSet) -> None:
    result = MfuResult(
        "palm", {"palm": 1e9}, 1.2e9, 1e3, {}, 2, 1e12, "bf16", "a table", (Part("mm", 1.0, 2.0, "why"),)
    )
    document = build(tables, {"mfu": result}, name="x")
    figure = mfu_figure(document)
    assert figure.value == 0.5
    assert figure.second == "palm convention, peak 1.00 TFLOP/s bf16, HFU 60.0%"
    (section,) = (candidate for candidate in document.sections if candidate.id == "mfu")
    assert [block.title for block in section.blocks if isinstance(block, DataTable)] == [
        "By convention",
        "FLOPs per step: model and trace",
    ]


def test_the_worst_health_comes_first_and_the_rest_is_counted(tables: TableSet) -> None:
    rows = (
        HealthRow("a", Severity.INFO),
        HealthRow("b", Severity.ERROR),
        HealthRow("c", Severity.DATA_LOSS),
    )
    document = build(tables, {"x": GivenResult(notes=rows)}, name="x")
    health = next(block for block in document.summary.blocks if isinstance(block, Health))
    assert [row.code for row in health.rows] == ["c", "b"]
    assert health.more == 1


def test_every_section_that_is_built_is_in_the_list() -> None:
    files = {path.stem for path in Path(sections.__file__).parent.glob("*.py")} - {"__init__", "plain", "summary"}
    modules = {name: import_module(f"usp_prof.report.sections.{name}") for name in files}
    built = {
        (name.removeprefix("build_"), file)
        for file, module in modules.items()
        for name in vars(module)
        if name.startswith("build_")
    }
    assert built == {(name, file) for name, (_, file) in sections.SECTIONS.items()}
    assert set(NAMES) <= set(sections.SECTIONS)


def test_an_impossible_figure_is_withheld_everywhere_and_reported(tables: TableSet) -> None:
    analysis = GivenResult((value("mfu", 424.0, Unit.FRACTION), value("mfu", 0.4, Unit.FRACTION, step=1)))
    document = build(tables, {"x": analysis}, name="x")
    assert [(v.metric.id, v.value, dict(v.dims)) for v in tuple(document.values)] == [("mfu", 0.4, {"step": 1})]
    (row,) = [row for row in document.health if row.code == "impossible_figure"]
    assert row.detail.startswith("mfu of 424 is outside 0 to 1")
