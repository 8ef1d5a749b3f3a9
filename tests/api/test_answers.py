"""Answers in Python: the report's content as a sentence, a table with units, metrics and a picture."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from made_faults import run_with

from usp_prof import UspProfError, open_run
from usp_prof.analyses import breakdown, overlap, stragglers
from usp_prof.analyses.stragglers import STRAGGLER_COST
from usp_prof.api import sentences
from usp_prof.api.pictures import picture
from usp_prof.charts.inputs import BreakdownRows, RankBars
from usp_prof.contract import ModelEntry
from usp_prof.findings import find
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Value
from usp_prof.model.selection import Selection
from usp_prof.report.figures import Figures

if TYPE_CHECKING:
    from usp_prof.api.answer import Answer

TRACES = Path(__file__).parents[2] / "traces"
QUESTIONS = (
    "breakdown", "overlap", "communication", "pipeline", "stragglers", "kernels", "mfu", "host", "critical_path",
)  # fmt: skip
UNITS = ("_ns", "_bytes", "_fraction", "_ratio", "_per_second", "_per_byte", "_flop", "_ppm")
BARE = {
    "rank", "step", "bytes", "calls", "late", "complete", "inter_node", "launches", "deepest_queue", "chosen",
    "devices",
}  # fmt: skip
"""Columns that count or number, and need no unit."""


def ask(name: str, fault: str = "slow_rank") -> Answer:
    answer: Answer = getattr(run_with(fault), name)()
    return answer


def test_answers_leave_out_a_step_cut_by_the_end_of_the_recording_unless_it_is_named(tmp_path: Path) -> None:
    run = open_run(TRACES / "gpu-late-input", cache_dir=tmp_path)
    step_ns = float(run.breakdown().df["step_ns"].mean())
    assert step_ns == run.whatif("no_input_wait").prediction.recorded_ns == pytest.approx(68.2e6, rel=0.001)
    assert run.mfu().metrics["mfu"] == pytest.approx(0.300, abs=0.0005)
    assert run.mfu(steps=range(27, 30)).metrics["mfu"] == pytest.approx(0.340, abs=0.0005)
    assert run.breakdown(steps=29).df["step"].tolist() == [29]
    assert run.sql("SELECT step FROM steps WHERE is_cut").fetchall() == [(29,)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_has_a_sentence_a_table_metrics_and_a_chart(name: str) -> None:
    answer = ask(name)
    assert answer.sentence.endswith(".")
    assert len(answer.df)
    assert answer.metrics
    assert set(answer.metrics) <= set(answer.metric_table["metric"])
    assert answer.plot().renderers
    page = answer._repr_html_()
    assert "<svg" in page
    assert "<table" in page
    assert answer.question in answer.explain()


def test_a_chart_of_many_ranks_shows_the_latest_ones() -> None:
    late_ns = {rank: 5.0 + (1_000 if rank in {700, 1_001} else 0) for rank in range(1_024)}
    figures = Figures([Value(STRAGGLER_COST, ns, {"rank": rank}) for rank, ns in late_ns.items()])
    bars = picture("stragglers", None, stragglers.compute(run_with("slow_rank").tables), figures)
    assert isinstance(bars, RankBars)
    assert {"rank 700", "rank 1001"} < set(bars.labels)
    assert len(bars.labels) < 100
    assert bars.quantity == "own delay in a step, largest of 1024 ranks"


def test_a_notebook_shows_numbers_in_readable_units() -> None:
    run = run_with("slow_rank")
    for answer in (run.summary, run.breakdown(), run.stragglers()):
        cells = re.findall(r"<td>([^<]*)</td>", answer._repr_html_())
        assert cells
        assert [cell for cell in cells if re.fullmatch(r"\d{7,}|[\d.]+e\+\d+", cell)] == []


@pytest.mark.parametrize("name", [*QUESTIONS, "memory"])
def test_number_columns_have_a_unit(name: str) -> None:
    table = ask(name).df
    numbers = {column for column in table.columns if pd.api.types.is_numeric_dtype(table[column])}
    assert {column for column in numbers - BARE if not column.endswith(UNITS)} == set()


def test_the_breakdown_adds_up_to_the_step() -> None:
    table = ask("breakdown").df
    parts = [c for c in table.columns if re.match(r"(compute|exposed_.*|memcpy|idle_.*)_ns$", c)]
    assert (table[parts].sum(axis=1) == table["step_ns"]).all()


def test_answers_cover_the_selected_ranks_and_steps() -> None:
    run = run_with("slow_rank")
    first = int(run.breakdown().df["step"].min())
    selected_rows = run.breakdown(ranks=[0, 1], steps=(first, first + 1)).df
    assert set(selected_rows["rank"]) == {0, 1}
    assert set(selected_rows["step"]) == {first, first + 1}
    assert run.breakdown(steps=range(first, first + 2)).df.equals(run.breakdown(steps=(first, first + 1)).df)
    direct = overlap.compute(run.tables, Selection((1,), first, first))
    assert run.overlap(ranks=[1], steps=first).metric_values == tuple(direct.values())


def test_ranks_and_steps_may_be_values_of_a_table() -> None:
    run = run_with("slow_rank")
    table = run.breakdown().df
    first = int(table["step"].min())
    assert run.breakdown(ranks=1).df.equals(run.breakdown(ranks=[1]).df)
    assert run.breakdown(ranks=table["rank"].unique()).df.equals(table)
    assert run.breakdown(steps=table["step"].min()).df.equals(run.breakdown(steps=first).df)
    assert run.breakdown(steps=[first]).df.equals(run.breakdown(steps=first).df)
    assert run.breakdown(steps=[first + 1, first]).df.equals(run.breakdown(steps=(first, first + 1)).df)
    assert set(run.timeline(table["step"].min(), ranks=1).df["rank"]) == {1}


@pytest.mark.parametrize("name", ["breakdown", "findings", "report"])
@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        ([99], None), ([], None), ("0,1", None), ([0.5], None),
        (None, range(3, 3)), (None, range(0, 9, 2)), (None, 999), (None, (5, 3)),
        (None, [1, 3]), (None, []), (None, "1"),
    ],
)  # fmt: skip
def test_missing_ranks_and_steps_are_refused_with_a_hint(name: str, ranks: object, steps: object) -> None:
    with pytest.raises(UspProfError) as refused:
        getattr(run_with("clean"), name)(ranks=ranks, steps=steps)
    assert refused.value.hint


@pytest.mark.parametrize("name", QUESTIONS)
def test_tables_and_metrics_cover_only_the_selected_ranks(name: str) -> None:
    answer = getattr(run_with("slow_rank"), name)(ranks=[1])
    if "rank" in answer.df:
        assert set(answer.df["rank"]) == {1}
    if "rank" in answer.metric_table:
        assert set(answer.metric_table["rank"].dropna()) <= {1}


@pytest.mark.parametrize("name", ["pipeline", "critical_path"])
def test_figures_of_all_ranks_are_not_attributed_to_selected_ones(name: str) -> None:
    run = run_with("slow_rank")
    assert getattr(run, name)(ranks=[1]).sentence == getattr(run, name)().sentence
    assert run.breakdown(ranks=[1]).sentence.startswith("1 of 4 ranks (1) only: ")


def test_findings_for_selected_steps_state_that_they_cover_all_steps() -> None:
    run = run_with("slow_rank")
    some, every = run.findings(steps=int(run.breakdown().df["step"].max())), run.findings()
    assert [note.code for note in some.notes if note not in every.notes] == ["findings_of_all_steps"]


def test_the_late_rank_is_named_with_its_cost() -> None:
    answer = ask("stragglers")
    cost = answer.metric_table.query("metric == 'straggler_cost' and rank == 1 and step.isna()")["value"].item()
    assert answer.sentence.startswith("Rank 1 delays the others by ")
    assert cost == answer.metrics["straggler_cost"]
    assert "No rank delays the others" in ask("stragglers", "clean").sentence


def test_findings_have_one_row_each_and_the_sentence_names_the_first() -> None:
    answer = ask("findings")
    table = answer.df
    assert {"rank_as_peers=1"} <= set(table["edit"])
    assert answer.sentence.lower().startswith(table["title"][0].lower())
    assert answer.plot().renderers


def test_a_sentence_that_begins_with_an_op_is_not_capitalized() -> None:
    slow_op = replace(find(run_with("slow_rank").tables)[0], title="aten::mm takes 18% of compute")
    assert sentences.findings([slow_op]).startswith("aten::mm takes")


def test_the_communication_chart_shows_waiting_and_transfer() -> None:
    picture = ask("communication").picture
    assert isinstance(picture, BreakdownRows)
    assert [part.label for part in picture.parts] == ["waiting for the last member", "transfer"]


def test_a_cpu_run_states_that_it_launches_nothing() -> None:
    answer = run_with("clean", "gloo").host()
    assert "no launches were recorded" in answer.sentence
    assert answer.df["deepest_queue"].isna().all()


def test_a_notebook_cuts_long_names_and_scrolls_wide_tables() -> None:
    answer = replace(ask("kernels"), _make_frame=lambda: pd.DataFrame({"name": ["void at::native::" * 30]}))
    page = answer._repr_html_()
    assert "overflow-x" in page
    assert "void at::native::" * 15 not in page
    assert len(answer.df["name"][0]) == 30 * len("void at::native::")


def test_equal_notes_of_all_ranks_are_combined() -> None:
    notes = [(note.code, note.detail) for note in ask("findings").notes]
    assert len(notes) == len(set(notes))


def test_a_table_without_rows_has_columns_of_texts() -> None:
    run = run_with("slow_rank", described=False)
    table = run.mfu().df
    assert len(table) == 0
    assert not pd.api.types.is_numeric_dtype(table["convention"])


def test_findings_of_a_trace_without_steps_are_drawn_over_the_whole_trace(tmp_path: Path) -> None:
    trace = {"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": 1}}
    for number in range(200):  # each kernel waits for its launch: 90 us of every 100
        launch = {"ph": "X", "pid": 9, "tid": 9, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        kernel = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": f"gemm_{number % 3}"}
        tied = {"correlation": number + 1, "device": 0, "stream": 7}
        trace["traceEvents"] += [
            launch | {"ts": number * 100, "dur": 80, "args": tied},
            kernel | {"ts": number * 100 + 85, "dur": 10, "args": tied},
        ]
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    findings = open_run(tmp_path, cache_dir=tmp_path / "cache").findings()
    assert list(findings.df["code"]) == ["host-bound"]
    assert findings.plot().renderers


def test_the_file_suffix_selects_the_report_format(tmp_path: object) -> None:
    report = run_with("slow_rank").report()
    path = report.write(f"{tmp_path}/report.md")
    assert path.read_text(encoding="utf-8") == report.text()
    assert report.text("json").startswith("{")
    assert "rank 1" in report.text()
    assert "<svg" in report._repr_html_()
    with pytest.raises(UspProfError, match="the format of"):
        report.write("report.pdf")
    with pytest.raises(UspProfError, match="no form"):
        report.text("pdf")
    with pytest.raises(UspProfError, match="cannot write"):
        report.write(f"{tmp_path}/nowhere/report.md")


def test_the_summary_is_the_reports_first_screen() -> None:
    run = run_with("slow_rank")
    assert set(run.summary.df["figure"]) >= {"step", "MFU", "bubble"}
    assert run.summary.metrics["compute_time"] == run.breakdown().metrics["compute_time"]


def test_a_timeline_shows_one_step_of_the_selected_ranks() -> None:
    run = run_with("slow_rank")
    step = int(run.breakdown().df["step"].iloc[0])
    answer = run.timeline(step, ranks=[0, 1])
    assert set(answer.df["rank"]) == {0, 1}
    assert set(answer.df["step"]) == {step}
    assert answer.plot().renderers
    assert f"of {run.name} on 2 of" in answer.sentence
    with pytest.raises(UspProfError, match="no step 999"):
        run.timeline(999)


def test_unrecorded_figures_are_reported_and_not_drawn() -> None:
    answer = ask("memory")
    assert "not recorded" in answer.sentence
    with pytest.raises(UspProfError, match="this answer has no chart"):
        answer.plot()
    page = answer._repr_html_()
    assert "<svg" not in page
    assert "<table" not in page, "a table without rows says nothing"
    assert "profile_memory" in page


def test_unknown_sizes_are_missing_values() -> None:
    """The reserved bytes of a CPU run were -1, and their mean with them."""
    answer = ask("memory")
    table = pd.DataFrame({"rank": [0, 1], "taken_bytes": [5, 6], "reserved_bytes": [-1, 8]})
    shown = replace(answer, _make_frame=lambda: table).df
    assert shown["reserved_bytes"].mean() == 8
    assert shown["taken_bytes"].dtype == np.int64
    assert table["reserved_bytes"].tolist() == [-1, 8]


def test_an_assumed_device_changes_mfu_until_it_is_cleared() -> None:
    run = run_with("late_input")
    before, key_figures = run.mfu().metrics["mfu"], run.summary.df
    assert run.assume(device="B200") is run
    assert run.mfu().metrics["mfu"] < before
    assert not run.summary.df.equals(key_figures)
    run.assume()
    assert run.mfu().metrics["mfu"] == before


def test_an_unknown_device_is_refused() -> None:
    """It used to hide MFU, with a note on recomputation as the reason."""
    with pytest.raises(UsageError, match="no device is named 'H201'") as error:
        run_with("late_input").assume(device="H201")
    assert error.value.hint.startswith("did you mean H20 or")


def test_assumptions_stay_until_they_are_cleared() -> None:
    run = run_with("late_input")
    recorded = run.mfu()
    run.assume(device="B200").assume(convention="causal")
    chosen = run.mfu().df.query("chosen")
    assert chosen["convention"].item() == "causal"
    assert chosen["peak_flop_per_second"].item() > recorded.df["peak_flop_per_second"].max()
    assert run.assume(sequence=64).mfu().df["per_token_flop"].max() != recorded.df["per_token_flop"].max()
    assert run.assume().mfu().df.equals(recorded.df)


def test_a_question_accepts_its_own_convention() -> None:
    run = run_with("late_input")
    before = run.mfu().df
    chosen = run.mfu(convention="causal").df.query("chosen")
    assert chosen["convention"].item() == "causal"
    assert run.mfu().df.equals(before)


def test_a_model_can_be_assumed_by_name() -> None:
    """`plan` and `memory` accepted names, but `assume` required a file."""
    run = run_with("late_input").assume(model="llama3 8b", sequence=4096)
    assert (run.tables.assumptions.model or ModelEntry()).layers == 32
    with pytest.raises(UspProfError, match="no model is named 'Lama-3'"):
        run.assume(model="Lama-3")
    run.assume()  # other tests share the run


def test_the_longest_ops_are_named() -> None:
    """The sentence mentioned only small kernels if no shapes were recorded."""
    ops = ask("kernels").df.query("op != '(paced wait)'").groupby("op")["time_ns"].sum()
    assert ask("kernels").sentence.startswith(f"{ops.idxmax()} takes ")


def test_assumed_tokens_are_tokens_per_step() -> None:
    run = run_with("late_input")
    recorded = run.mfu()
    more = run.assume(tokens_per_step=9 * run.tables.tokens_per_step // 8)
    assert more.mfu().metrics["mfu"] == pytest.approx(9 / 8 * recorded.metrics["mfu"])
    predicted = more.whatif("micro_batches=16")
    assert predicted.tables.tokens_per_step == predicted.prediction.layout_after.tokens_per_step
    assert predicted.tables.tokens_per_step > more.tables.tokens_per_step
    wrong = run.assume(tokens_per_step=10 * run.tables.tokens_per_step).mfu()
    assert not {"mfu", "tokens_per_second"} & wrong.metrics.keys()
    assert "model_contradicted" in wrong.explain()
    assert run.assume().mfu().metrics == recorded.metrics
    with pytest.raises(UspProfError, match="above 0"):
        run.assume(tokens_per_step=-1)


def test_mfu_names_its_convention_and_can_be_recomputed() -> None:
    answer = ask("mfu")
    row = answer.df.query("chosen").iloc[0]
    assert f"({row['convention']} convention)" in answer.sentence
    by_hand = row["per_token_flop"] * row["tokens_per_second"] / (row["devices"] * row["peak_flop_per_second"])
    assert by_hand == pytest.approx(answer.metrics["mfu"])


def test_sql_returns_a_relation() -> None:
    run = run_with("slow_rank")
    assert run.sql("SELECT count(DISTINCT rank) FROM kernels").fetchall() == [(len(run.ranks),)]


def test_answers_have_the_figures_of_the_analysis() -> None:
    run = run_with("slow_rank")
    assert run.breakdown().metric_values == tuple(breakdown.compute(run.tables).values())
