"""Agreement of page, download and report; downloads have raw values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from drawn import drawn, naming

from dashboard import data, report
from dashboard.answers import pictures
from dashboard.components.download import long_names, number_formats, plain, scaled
from dashboard.pages import query, suggestions
from dashboard.report import written
from usp_prof import open_run
from usp_prof.charts.inputs import AxisCommunication
from usp_prof.extras.planner.answers import plan, plan_map
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.model.metric import Unit
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.answers import comparison
from usp_prof.report.document import DataTable, Document, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[2] / "traces"
CHOICES = {
    "whatif": ({"edits": "no_pauses comm_faster=2"}, "What if: no host pauses, transfers 2x faster"),
    "pipeline": ({"schedule": "gpipe", "m": "4"}, "Another schedule: schedule=gpipe,m=4"),
    "suggestions": ({"ticked": "0"}, "Selected suggestions together"),
    "plan": ({"trainer": "megatron"}, "pretrain_gpt.py"),
    "sweep": ({"figure": "memory", "down": "dp"}, "Sweep: memory over dp and pp"),
    "compare": ({}, "Why the step is longer or shorter"),
    "query": ({"sql": "SELECT rank, count(*) AS n FROM steps GROUP BY rank"}, "SELECT rank, count(*) AS n"),
}
"""Pages with choices, something to choose on each, and what its file must say."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def runs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with naming([TRACES / "recorded-1f1b", TRACES / "recorded-interleaved"], cache, monkeypatch):
        yield


@pytest.mark.parametrize("page", CHOICES)
def test_a_page_is_one_file_of_html_and_a_part_of_the_report(page: str) -> None:
    address, wanted = CHOICES[page]
    answer = drawn(page, **address).session_state["answers"][page]
    file = written(answer)
    assert file.startswith("<!DOCTYPE html>")
    assert wanted in file
    assert ("data-chart=" in file) == (page != "query")
    sections = list(report.chosen(0, (answer,)))
    if page == "compare":  # the report is about one run
        assert not {section.id for section in answer.sections()} & {section.id for section in sections}
        return
    assert {section.id for section in answer.sections()} <= {section.id for section in sections}
    assert len({section.id for section in sections}) == len(sections)


def test_every_page_with_choices_is_in_the_order_of_the_report() -> None:
    assert set(CHOICES) - {"compare"} <= set(report.ORDER)


def test_the_report_contains_sections_that_need_no_choice() -> None:
    page = report.ask(0, EVERYTHING).result()
    for text in ("Memory, predicted", "Plan: 4 x", "Sweep: tokens/s over tp and pp", "class='usp-timeline'"):
        assert text in page
    assert "What if:" not in page
    assert "Why the step is longer" not in page


def test_a_section_that_cannot_be_predicted_states_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    slices = [
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": at, "dur": 5} for at in range(0, 90, 9)
    ]
    (bare / "rank0.json").write_text(json.dumps({"traceEvents": slices}))
    with naming([bare], tmp_path / "cache", monkeypatch):
        section_by_id = {section.id: section for section in report.chosen(0, ())}
    assert set(section_by_id) == {"memory", "plan", "sweep"}
    assert "model and mesh are unknown" in section_by_id["plan"].blocks[0].text  # type: ignore[union-attr]


def test_the_overview_and_its_report_leave_out_a_cut_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([TRACES / "gpu-late-input"], tmp_path, monkeypatch):
        overview = drawn("overview")
        page = report.ask(0, EVERYTHING).result()
        document = data.document(0, EVERYTHING)
    assert (overview.metric[0].label, overview.metric[0].value) == ("step", "68.2 ms")
    assert "68.2 ms" in page
    assert "60.1 ms" not in page
    assert document.run.steps == (27, 28)


def test_the_overview_has_one_step_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean rank's step was in the title of its parts, and that of the longest step in the title of the timeline."""
    with naming([TRACES / "recorded-5d"], tmp_path, monkeypatch):
        overview = drawn("overview")
    titles = [element.value for element in overview.markdown if element.value.startswith("**")]
    assert {"**Where the mean rank step goes**", "**Step 3**"} <= set(titles)
    assert [title for title in titles if " ms" in title] == []
    assert [metric.value for metric in overview.metric if metric.label == "step"] == ["524 ms"]


def test_metrics_are_downloaded_raw() -> None:
    pair = data.ask_comparison(0, 1).result().pairs[0]
    frame = comparison.metrics_frame(pair, everything=True)
    step = frame[frame["key"] == "step_time"].iloc[0]
    assert step["unit"] == "ns"
    assert step["before"] == pytest.approx(pair.why.step_before_ns, rel=0.2)
    assert len(frame) > len(comparison.metrics_frame(pair, everything=False))


def test_metrics_are_shown_as_numbers_each_in_its_unit() -> None:
    pair = data.ask_comparison(0, 1).result().pairs[0]
    shown, raw = (build(pair, everything=True) for build in (comparison.metrics_shown, comparison.metrics_frame))
    assert shown["of"].iloc[0] == "job_step_time"  # by importance; the raw ones by name
    raw = raw.set_index("key").loc[shown["of"]].reset_index()
    assert len(raw) == len(shown)
    for name in ("before", "after", "change", "from", "to"):
        assert shown[name].dtype == "float64", name
    step = shown[shown["of"] == "step_time"].iloc[0]
    assert step["unit"] in {"ms", "s"}
    assert step["before"] * {"ms": 1e6, "s": 1e9}[step["unit"]] == pytest.approx(pair.why.step_before_ns, rel=0.2)
    fractions = (shown["unit"] == "%") & (raw["change_scale"] == "absolute")
    assert set(shown["in"][fractions]) == {"points"}
    is_known = fractions & shown["change"].notna()
    assert shown["change"][is_known].tolist() == pytest.approx(
        (100 * raw["change"][is_known]).tolist(), rel=6e-3, abs=1e-9
    )


def test_findings_are_downloaded_raw() -> None:
    findings = data.document(0, EVERYTHING).findings
    frame = suggestions.as_frame(findings)
    assert frame["gain_fraction"].tolist() == [finding.gain_fraction for finding in findings]
    assert frame["evidence"].str.startswith("{").all()


def test_plans_are_downloaded_with_all_columns() -> None:
    plans = data.ask_plans(report.recorded_question(data.ask_calibration(0).result())).result()
    frame = plan.frame(plans.best)
    assert len(frame) == len(plans.best)
    assert frame["memory_bytes"].tolist() == [prediction.footprint.total_bytes for prediction in plans.best]
    assert plan.plans_table(plans.best, 2).more == len(plans.best) - 2
    cells = plan_map.section(plans, "tp", "pp", "step", "usp-prof").blocks[-1]
    assert isinstance(cells, DataTable)
    assert "step [ns]" in plain(cells)


def test_a_column_is_shown_on_one_scale_and_stays_a_number() -> None:
    block = DataTable(
        "",
        (TableColumn("time", Unit.NS), TableColumn("rank"), TableColumn("time", Unit.NS), TableColumn("note")),
        ((2_500_000, 1, None, "a"), (1_000, None, None, None)),
    )
    shown, kinds = scaled(block)
    assert list(shown) == ["time (ms)", "rank", "time", "note"]
    assert shown["time (ms)"].tolist() == [2.5, 0.001]
    assert shown["rank"].dtype == "Int64"
    assert math.isnan(shown["time"].iloc[0])
    assert kinds["time (ms)"]["type_config"]["format"] == "%.3f"
    assert list(plain(block)) == ["time [ns]", "rank", "time [ns] ", "note"]
    assert plain(block)["time [ns]"].tolist() == [2_500_000, 1_000]


def test_whole_numbers_of_any_type_are_written_without_decimals() -> None:
    block = DataTable("", (TableColumn("count"), TableColumn("rate")), ((327.0, 1.0), (None, 1.5), (12.0, None)))
    shown, kinds = scaled(block)
    assert shown["count"].tolist()[::2] == [327, 12]
    assert shown["count"].dtype == "Int64"
    assert list(kinds) == ["rate"]


@pytest.mark.parametrize("cell", [1, 2.5, "text", None, float("nan"), [1, 2], {"a": 1}, b"bytes", True], ids=repr)
def test_any_answer_can_be_written(cell: object) -> None:
    section = query.answered("SELECT 1", pd.DataFrame({"x": pd.Series([cell], dtype="object")}))
    table = section.blocks[1]
    assert isinstance(table, DataTable)
    assert isinstance(table.rows[0][0], int | float | str | None)


def without_links(document: Document, *axes: str) -> Document:
    """Return a report whose calls on these axes have no share of their link."""
    calls = next(section for section in document.sections if section.id == "collectives")
    table = next(block for block in calls.blocks if isinstance(block, DataTable))
    heads = [column.head for column in table.columns]
    at, axis = heads.index("of link"), heads.index("axis")
    rows = tuple((*row[:at], None, *row[at + 1 :]) if row[axis] in axes else row for row in table.rows)
    return replace(document, sections=(replace(calls, blocks=(replace(table, rows=rows),)),))


def test_the_bandwidth_of_each_axis_is_next_to_its_links(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(Declaration.from_dict({"mesh": {"dp": 2, "tp": 2}, "work": {"steps": 2}}), folder)
    document = open_run(folder, cache_dir=tmp_path / "cache").report().document
    shown = pictures.bandwidth_of_axes(document)
    assert shown is not None
    assert {figure.label for figure in shown.figures} == {"dp bus bandwidth", "tp bus bandwidth"}
    assert all("of the link" in figure.second for figure in shown.figures)
    bandwidths = pictures.bandwidth_of_axes(without_links(document, "dp", "tp"))
    assert bandwidths is not None
    assert not any("link" in figure.second for figure in bandwidths.figures)
    without_sizes = pictures.bandwidth_of_axes(replace(document, sections=()))
    assert without_sizes is not None
    assert {figure.value for figure in without_sizes.figures} == {None}
    assert all(figure.second.startswith("unknown without message sizes") for figure in without_sizes.figures)
    assert pictures.bandwidth_of_axes(replace(document, sections=(), values=())) is None


def test_axes_whose_link_is_unknown_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(Declaration.from_dict({"mesh": {"dp": 2, "tp": 2}, "work": {"steps": 2}}), folder)
    document = open_run(folder, cache_dir=tmp_path / "cache").report().document
    assert pictures.unknown_links(document) == ""
    assert pictures.unknown_links(without_links(document, "dp")).startswith("Calls on dp cross nodes")
    assert pictures.unknown_links(without_links(document, "dp", "tp")).startswith("The peak bandwidth of this device")


def test_a_question_of_a_page_is_answered_once() -> None:
    query.ask(0, query.EXAMPLE)
    run = data.open_numbered(0)
    answer = run.tables.memo(("query page", query.EXAMPLE), lambda: pytest.fail("the query ran again"))
    assert query.as_frame(answer).equals(query.ask(0, query.EXAMPLE))


def test_axes_have_one_order_on_the_page(tmp_path: Path) -> None:
    """The key figures were sorted by exposed time, the bars below them by axis."""
    folder = tmp_path / "run"
    write(Declaration.from_dict({"mesh": {"dp": 2, "tp": 2}, "work": {"steps": 2}}), folder)
    document = open_run(folder, cache_dir=tmp_path / "cache").report().document
    figures, bars = pictures.bandwidth_of_axes(document), pictures.axes_by_exposure(document)
    assert figures is not None
    assert bars is not None
    assert isinstance(bars.data, AxisCommunication)
    assert [figure.label.partition(" ")[0] for figure in figures.figures] == list(bars.data.axes)
    assert sorted(bars.data.exposed_ns, reverse=True) == list(bars.data.exposed_ns)


def test_decimals_of_an_answer_align_and_no_column_is_hidden() -> None:
    """The grid wrote 252.147, 228.2835 and 169.132 below each other."""
    nothing = float("nan")
    frame = pd.DataFrame({"rank": [1, 2], "ms": [252.147, 228.2835], "whole": [1.0, nothing], "none": [nothing] * 2})
    assert {name: form["type_config"]["format"] for name, form in number_formats(frame).items()}["ms"] == "%.1f"
    assert None not in number_formats(frame).values()


def test_a_column_of_very_long_names_leaves_room_for_the_others() -> None:
    frame = pd.DataFrame(
        {"name": ["void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel>"], "op": ["mm"]}
    )
    assert list(long_names(frame)) == ["name"]
