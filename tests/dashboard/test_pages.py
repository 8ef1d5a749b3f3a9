"""Each page on a small run, without a browser, and the selection in the address."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pandas as pd
import pytest
from drawn import SCRIPT_OF_PAGE, drawn, framed, naming
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block

import dashboard.pages
from dashboard import data, report, served_runs, state
from dashboard.components.download import scaled
from dashboard.components.findings import figures_of, shown_at, sure
from dashboard.pages import PAGES, overview, query, sections, timeline
from dashboard.state import Page
from dashboard.timeline.details import group_label
from usp_prof.charts.inputs import BreakdownRows, Part
from usp_prof.charts.theme import LIGHT
from usp_prof.model.edit import parse_edit
from usp_prof.model.finding import Basis, Finding
from usp_prof.model.metric import Unit
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.answers import comparison, whatif
from usp_prof.report.document import DataTable, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEALTH = """from dashboard.components.blocks import show
from usp_prof.model.health import HealthRow, Severity
from usp_prof.report.document import Health
rows = [HealthRow("clock", Severity.ERROR, rank, detail="no clock") for rank in (0, 1, 2, 7)]
rows += [HealthRow("clock", Severity.ERROR, 3, detail="another"), HealthRow("odd", Severity.INFO, detail="of no rank")]
show(Health(tuple(rows), 2), "health")
"""
"""A page that shows what is wrong with a run."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def named_run(run_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with naming([run_folder, run_folder.with_name("recorded-interleaved")], cache, monkeypatch):
        yield


def test_every_page_is_listed() -> None:
    for module in pkgutil.iter_modules(dashboard.pages.__path__):
        content = vars(importlib.import_module(f"dashboard.pages.{module.name}"))
        pages_of_module = [value for value in content.values() if isinstance(value, Page)]
        assert pages_of_module, module.name
        assert all(page in PAGES for page in pages_of_module), module.name
    assert len({page.path for page in PAGES}) == len(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])
def test_a_page_is_drawn(page: Page) -> None:
    assert drawn(page.path).main


@pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])
def test_a_second_visit_draws_no_chart_again(page: Page) -> None:
    """The communication of each axis was drawn on each visit, for 60 ms."""
    first, second = [
        [json.loads(figure.proto.json)["stamp"] for figure in drawn(page.path).get("bidi_component")
         if figure.proto.component_name == "usp_figure"]
        for _ in range(2)
    ]  # fmt: skip
    assert first == second


def test_the_mean_of_selected_ranks_is_not_called_the_mean_of_all() -> None:
    drawn_all, drawn_two = drawn("overview"), drawn("overview", ranks="0,1")
    of_all, of_two = (
        [text.value for text in app.markdown if "Where the" in text.value] for app in (drawn_all, drawn_two)
    )
    assert len(of_all) == len(of_two) == 1
    assert "mean rank step" in of_all[0]
    assert "mean step of 2 ranks" in of_two[0]


def test_a_change_is_predicted() -> None:
    app = AppTest.from_string(SCRIPT_OF_PAGE.format(page="whatif"), default_timeout=120)
    app.query_params["edits"] = "comm_faster=2"
    app.run()
    assert not app.exception, app.exception[0].value
    assert [metric.label for metric in app.metric] == ["mean rank step, measured", "predicted", "gain"]
    assert any("Transfers 2x faster: saves " in text.proto.body for text in app.get("html"))


def test_notes_on_a_predicted_gain_are_next_to_it(
    run_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stood below the inputs, where they were missed."""
    with naming([run_folder.with_name("gpu-late-input")], cache, monkeypatch):
        app = drawn("whatif", edits="no_input_wait comm_faster=2")
    kinds = [*_kinds(app.main)]
    note = next(place for place, (_, text) in enumerate(kinds) if "the recording of a rank ended" in text)
    first = {kind: place for place, (kind, _) in reversed([*enumerate(kinds)])}
    assert first["metric"] < note < first["bidi_component"] < first["toggle"] < first["dataframe"]


def _kinds(node: Block) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each element in the order of the page."""
    for child in node.children.values():
        yield child.type, str(getattr(child, "value", ""))
        if isinstance(child, Block):
            yield from _kinds(child)


def test_the_chosen_run_is_compared_with_another() -> None:
    for chosen, other in ((0, 1), (1, 0)):
        app = drawn("compare", run=served_runs.key(chosen), before=served_runs.key(chosen))
        assert app.selectbox[0].label == f"Compare {served_runs.name(chosen)} with an earlier run"
        assert app.selectbox[0].value == other


def test_invalid_sql_is_an_error_next_to_all_tables() -> None:
    app = drawn("query", sql="SELEC")
    assert len(app.error) == 1
    assert {"events", "kernels", "calls"} <= set(app.dataframe[0].value["table"])


def test_the_back_button_returns_from_a_typed_question() -> None:
    app = drawn("query")
    first = app.text_area[0].value
    app.text_area[0].set_value("SELECT 1 AS one")
    next(button for button in app.button if button.label.startswith("Run")).click().run()
    assert "".join(app.query_params["sql"]) == "SELECT 1 AS one"
    assert app.selectbox[0].value == "one of your own"
    del app.query_params["sql"]  # as the browser's way back does
    app.run()
    assert app.text_area[0].value == first
    assert "sql" not in app.query_params


def test_a_visitor_does_not_wait_for_another_run() -> None:
    held = Event()
    data.worker.ask("busy", held.wait, lane=0)
    assert data.ask_document(1, Selection(ranks=(0,))).result(60)
    assert not data.worker.is_ready(("run", 0))
    held.set()
    data.prepare().join()
    assert data.worker.is_ready(("timeline", 0))
    assert data.worker.is_ready(("timeline", 1))


def test_every_link_contains_the_selection() -> None:
    links = framed(run=served_runs.key(1), ranks="0-1", steps="0-9").get("page_link")
    addresses = {link.proto.label: parse_qs(link.proto.query_string) for link in links}
    assert all(address["run"] == [served_runs.key(1)] and address["steps"] == ["0-9"] for address in addresses.values())
    for label in ("Kernels", "Predict", "Query in SQL", "Open in Timeline", "Show me"):
        assert addresses[label]["ranks"] == ["0-1"], label


def test_going_back_restores_the_previous_ranks() -> None:
    app = framed()
    field = next(field for field in app.text_input if field.label == "Ranks")
    field.set_value("0-1").run()
    assert "".join(app.query_params["ranks"]) == "0-1"
    del app.query_params["ranks"]  # as the browser's way back does
    app.run()
    assert next(field for field in app.text_input if field.label == "Ranks").value == ""
    assert "ranks" not in app.query_params


def test_another_run_is_in_every_link_at_once() -> None:
    app = framed()
    app.sidebar.selectbox[0].set_value(1).run()
    assert not app.exception
    assert all(parse_qs(link.proto.query_string)["run"] == [served_runs.key(1)] for link in app.get("page_link"))


def test_a_wrong_column_is_an_error_next_to_the_columns_of_its_table() -> None:
    app = drawn("query", sql="SELECT nme FROM kernels")
    assert set(app.dataframe[0].value["table"]) == {"kernels"}
    assert "name" in set(app.dataframe[0].value["column"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("0,2", (0, 2)), ("1-3", (1, 2, 3)), ("9", None), ("x; DROP", None), ("2-0", None), ("3,1,1", (1, 3))],
)
def test_ranks_are_read_from_the_address(text: str, expected: tuple[int, ...] | None) -> None:
    assert state.parse_ranks(text, (0, 1, 2, 3)) == expected


@pytest.mark.parametrize("ranks", [None, (0,), (0, 1, 2), (0, 2, 3, 7)])
def test_ranks_are_written_as_they_are_read(ranks: tuple[int, ...] | None) -> None:
    assert state.parse_ranks(state.format_ranks(ranks), tuple(range(8))) == ranks


def test_ticked_findings_are_replayed_together() -> None:
    app = drawn("suggestions", ticked="0,1")
    labels = [metric.label for metric in app.metric]
    assert "gain of 2 together" in labels
    app.checkbox[0].uncheck().run()
    assert not app.exception
    assert "gain of the selected one" in [metric.label for metric in app.metric]
    assert "".join(app.query_params["ticked"]) == "1"


def test_the_joint_gain_is_at_most_the_sum_of_single_gains() -> None:
    findings = data.document(0, EVERYTHING).findings
    ticked = [finding for finding in findings if finding.edit][:2]
    edits = tuple(parse_edit(finding.edit) for finding in ticked)
    steps = [data.prediction(0, edits[:count]) for count in (1, 2)]
    bars = whatif.bars(ticked, steps)
    assert bars.first_ns + sum(bars.delta_ns) == pytest.approx(steps[-1].after_ns)


def test_a_change_without_effect_does_not_cost_anything() -> None:
    prediction = data.prediction(0, (parse_edit("compute_faster=2"),))
    longer = replace(prediction, after_ns=prediction.before_ns * 1.0004)
    assert ": saves 0.0% " in whatif.verdict(longer)
    three = tuple(parse_edit(word) for word in ("no_pauses", "zero=1", "dp=4"))
    assert whatif.verdict(replace(prediction, edits=three)).startswith(
        "No host pauses, ZeRO-1 and 4-way data parallel:"
    )
    assert ": costs 1.0% " in whatif.verdict(replace(prediction, after_ns=prediction.before_ns * 1.01))


def test_another_schedule_is_redrawn() -> None:
    app = drawn("pipeline", schedule="gpipe", m="4")
    assert "window under gpipe" in [metric.label for metric in app.metric]


def test_a_page_without_findings_does_not_explain_gains(
    run_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([run_folder.with_name("recorded-slow-rank-repaired")], cache, monkeypatch):
        app = drawn("overview")
    assert "**Findings**" in [text.value for text in app.markdown]
    assert overview.ORDER not in [caption.value for caption in app.caption]


def test_a_missing_roofline_names_what_is_missing(
    run_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence gave the efficiency at the roofline, and the remark said that the peak is unknown."""
    with naming([run_folder.with_name("recorded-5d")], cache, monkeypatch):
        app = drawn("kernels")
    captions = [caption.value for caption in app.caption]
    assert "No roofline chart: the memory bandwidth of the device is unknown." in captions


def test_the_parts_of_the_bubble_add_up_to_it() -> None:
    causes = sections.by_cause(data.document(0, EVERYTHING))
    assert causes is not None
    assert sum(part.value for part in causes.parts) == pytest.approx(1.0)
    assert all(part.value >= 0 for part in causes.parts)


def test_two_runs_are_compared() -> None:
    app = drawn("compare")
    heads = {"**Why the step is longer or shorter**", "**Timelines, aligned by step**"}
    assert heads <= {text.value for text in app.markdown}


def test_a_waterfall_ends_where_the_other_run_does() -> None:
    pair = data.ask_comparison(0, 1).result().pairs[0]
    made = comparison.as_waterfall(pair)
    assert made.first_ns + sum(made.delta_ns) == pytest.approx(sum(part.after_ns for part in pair.waterfall))


@pytest.mark.parametrize("kind", ["bars", "line", "points"])
def test_an_answer_is_drawn(kind: str) -> None:
    app = drawn("query", sql="SELECT rank, count(*) AS n FROM events GROUP BY rank", chart=kind)
    assert len(app.get("vega_lite_chart")) == 1


def test_both_axes_of_horizontal_bars_have_their_own_names() -> None:
    """Streamlit turns the names with the bars, and the page had turned them already."""
    app = drawn("query", sql="SELECT op, count(*) AS n FROM collectives GROUP BY op", chart="bars")
    encoding = json.loads(app.get("vega_lite_chart")[0].proto.spec)["encoding"]
    assert [encoding[axis]["title"] for axis in ("x", "y")] == ["n", "op"]


def test_parts_of_bars_have_the_colors_of_their_axes() -> None:
    app = drawn("query", sql="SELECT rank, axis, op, count(*) AS n FROM collectives GROUP BY ALL", chart="bars")
    drawing = json.loads(app.get("vega_lite_chart")[0].proto.spec)
    assert LIGHT.color("comm:pp") in drawing["encoding"]["color"]["scale"]["range"]


@pytest.mark.parametrize("page", ["whatif", "compare"])
def test_a_page_of_the_whole_run_says_that_a_selection_does_not_apply(page: str) -> None:
    remark = "This page covers all ranks and steps of the run, not only the selected ones."
    assert remark in [caption.value for caption in drawn(page, ranks="0-1").caption]
    assert remark not in [caption.value for caption in drawn(page).caption]


@pytest.mark.parametrize("order", ["rank", "slowest", "waiting"])
def test_ranks_are_shown_in_the_chosen_order(order: str) -> None:
    rows = BreakdownRows(
        ("a", "b", "c"), (Part("compute", "compute", (1.0, 3.0, 2.0)), Part("host", "idle:host", (5.0, 1.0, 9.0)))
    )
    expected = {"rank": ("a", "b", "c"), "slowest": ("b", "c", "a"), "waiting": ("c", "a", "b")}
    assert overview.ordered(rows, order).labels == expected[order]


def test_ranks_are_shown_along_an_axis() -> None:
    rows = BreakdownRows(
        ("mean of 9 others", "rank 0", "rank 1", "rank 2"), (Part("compute", "compute", (4.0, 1.0, 2.0, 3.0)),)
    )
    sorted_rows = overview.along(rows, "pp", {"rank 0": 1, "rank 1": 0, "rank 2": 1})
    assert sorted_rows.labels == ("mean of 9 others", "pp 0, rank 1", "pp 1, rank 0", "pp 1, rank 2")
    assert sorted_rows.parts[0].values_ns == (4.0, 2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("where", "evidence", "expected"),
    [
        ({}, {}, {"at": "middle", "show": "exposed,path"}),
        ({"step": 4}, {}, {"at": "4", "show": "exposed,path"}),
        ({"rank": 5}, {"at_step": 7}, {"at": "7", "only": "3-6", "focus": "5", "show": "exposed,path"}),
        (
            {},
            {"at_rank": 1, "start_ns": 10, "end_ns": 20},
            {"at": "10-20", "only": "0-3", "focus": "1", "show": "exposed,path"},
        ),
        ({"group": "30@2,6"}, {}, {"at": "middle", "only": "2,6", "focus": "2", "show": "exposed,path"}),
        ({"stage": 1, "rank": 99}, {}, {"at": "middle", "show": "exposed,actions"}),
    ],
)
def test_a_finding_is_shown_at_its_evidence(
    where: dict[str, int], evidence: dict[str, int], expected: dict[str, str]
) -> None:
    finding = Finding("code", "what", where, evidence)
    assert shown_at(finding, range(8)) == expected


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        ("blocking-sync", "host,exposed"), ("memory-pressure", "host,exposed"), ("host-pause", "host,exposed"),
        ("slow-rank", "exposed,path"),
    ],
)  # fmt: skip
def test_host_work_is_shown_on_its_threads(code: str, rows: str) -> None:
    assert shown_at(Finding(code, "what", {}, {}), range(8))["show"] == rows


def test_key_figures_of_a_page_are_not_repeated_in_its_tables() -> None:
    labels = [metric.label for metric in drawn("host", open="host").metric]
    assert labels
    assert len(set(labels)) == len(labels)


def test_evidence_of_one_unit_is_on_one_scale() -> None:
    evidence = {"compute_ns": 1_740_000_000, "peers_ns": 976_000_000, "peers": 3, "bound": "compute", "at_rank": 2}
    assert figures_of(Finding("code", "what", {}, evidence)) == [
        {"what": "compute", "value": 1.74, "unit": "s"},
        {"what": "peers", "value": 0.976, "unit": "s"},
        {"what": "number of peers", "value": 3, "unit": ""},
    ]


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("tp@0,1,2,7", "tp, ranks 0-2,7"),
        ("@0,1,2,3", "ranks 0-3"),
        ("default", "default"),
        ("a@b", "a@b"),
        ("", ""),
    ],
)
def test_a_group_is_named_by_its_ranks(group: str, words: str) -> None:
    assert group_label(group) == words


def test_a_health_note_of_many_ranks_is_shown_once() -> None:
    app = AppTest.from_string(HEALTH, default_timeout=120).run()
    assert [caption.value.replace("\\", "") for caption in app.caption] == [
        "▲ ranks 0-2, 7: no clock", "▲ rank 3: another", "○ of no rank", "2 more under Health",
    ]  # fmt: skip


def test_the_report_is_one_page() -> None:
    page = report.ask(0, EVERYTHING).result()
    assert page.startswith("<!DOCTYPE html>")
    assert "Where the step goes" in page
    assert "comparable" not in page, "the report of a run has no comparison with another"
    assert served_runs.name(1) not in page


def test_a_name_is_not_interpreted_as_markup() -> None:
    assert state.plain("a*b<c>") == "a\\*b\\<c\\>"


def test_a_bound_is_not_shown_as_certain() -> None:
    bound = Finding("code", "title", {}, {}, gain_fraction=0.5, basis=Basis.BOUND)
    assert sure(bound) == "upper limit"
    assert sure(replace(bound, error_fraction=0.05)) == "upper limit (±5.0%)"
    modeled = replace(bound, basis=Basis.MODELLED, error_fraction=0.05, step_ns=49.6e6, without_recording=True)
    assert sure(modeled) == "±5.0%, modeled, of the 49.6 ms step without recording"


def test_the_largest_number_of_a_column_determines_its_decimals() -> None:
    columns = (TableColumn("ms"), TableColumn("speed", Unit.PER_SECOND), TableColumn("calls", Unit.COUNT))
    frame, kinds = scaled(DataTable("", columns, ((3.841, 1_540_000.883, 66.0), (0.06124, 12.2, None))))
    assert kinds["ms"]["type_config"]["format"] == "%.3f"
    assert frame["speed (M/s)"].tolist() == pytest.approx([1.54, 0.0], abs=1e-3)
    assert kinds["speed (M/s)"]["type_config"]["format"] == "%.3f"
    assert kinds["calls"]["type_config"]["format"] == "localized"


def test_a_grid_shows_no_minus_before_a_zero() -> None:
    columns = (TableColumn("gain", Unit.FRACTION), TableColumn("step", Unit.NS), TableColumn("bare"))
    frame, _ = scaled(DataTable("", columns, ((-0.0001, -0.0001, -0.0001), (0.5, 3.0, 1.5), (None, None, None))))
    assert [str(cell) for head in frame for cell in frame[head][:2]] == ["0.0", "50.0", "0.0", "3.0", "0.0", "1.5"]
    assert frame.iloc[2].isna().all()


def test_a_wrong_question_shows_the_tables_next_to_it() -> None:
    app = drawn("query", sql="SELECT nothing FROM nowhere")
    assert len(app.error) == 1
    columns = app.dataframe[0].value
    assert {"collectives", "kernels"} <= set(columns["table"])
    assert {"rank", "dur_ns"} <= set(columns["column"])


def test_a_question_opens_with_its_answer_and_a_chart() -> None:
    app = drawn("query")
    assert any("Time in collectives by rank, axis and kind: " in text.proto.body for text in app.get("html"))
    assert len(app.get("vega_lite_chart")) == 1


def test_the_sentence_of_an_answer_is_its_only_row_or_the_number_of_rows() -> None:
    """It repeated the first row of the table below."""
    frame = pd.DataFrame({"name": ["k" * 90, "b"], "ms": [1234.567, 2.0]})
    assert query.sentence_of_answer(query.OWN, frame) == "Your question: 2 rows."
    assert query.sentence_of_answer(query.OWN, frame[:1]) == f"Your question: name {'k' * 59}…, ms 1,235."
    assert query.sentence_of_answer("The longest kernels", frame[:0]) == "The longest kernels: no row answers it."


def test_the_timeline_opens_on_the_selected_steps() -> None:
    store = data.timeline_store(0)
    (step,) = store.steps
    room = (step.end_ns - step.start_ns) // 20
    chosen = timeline.selected_range(store, state.View(0, None, step.number, step.number))
    assert chosen == [step.start_ns - room, step.end_ns + room]
    assert timeline.selected_range(store, state.View(0, None, 99, 99)) is None
    assert timeline.selected_range(store, state.View(0, None, None, None)) is None
