"""Job slowdown: the headline equals `whatif --ideal`, or states what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_faults import run_with
from tiny import Trace, table_set

from usp_prof.checking import measured
from usp_prof.findings.engine import find_all
from usp_prof.findings.repairs import ideal_of
from usp_prof.model.finding import IdealStep
from usp_prof.model.selection import EVERYTHING
from usp_prof.replay.representatives import Representatives
from usp_prof.report.answers.job_slowdown import section_of_run
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Document, KeyFigure, KeyFigures
from usp_prof.report.writers.terminal import sections_text
from usp_prof.run import open_run
from usp_prof.whatif.attribution import slowdown_on

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

SLEEPING = Path(__file__).parents[2].parent / "shared" / "traces" / "torchrec-4r-sleeping-rank"
MS = 1_000_000


def report_of(tables: TableSet) -> Document:
    return build(tables, analyze(tables), name="x")


def head(document: Document) -> KeyFigure | None:
    (figures,) = (block for block in document.summary.blocks if isinstance(block, KeyFigures))
    return next((figure for figure in figures.figures if figure.label == "job slowdown"), None)


def metric(document: Document, name: str) -> list[float]:
    return [value.value for value in document.values if value.metric.id == name and not value.dims]


@pytest.mark.parametrize("fault", ["clean", "slow_rank"])
def test_summary_json_gate_and_whatif_show_the_same_job_slowdown(fault: str) -> None:
    run = run_with(fault)
    replayed = slowdown_on(Representatives(run.tables), ideal_of(run.tables)).slowdown
    document = report_of(run.tables)
    figure = head(document)
    assert figure is not None
    assert figure.value == replayed
    assert metric(document, "job_slowdown") == [replayed]
    assert measured(run).value("job_slowdown") == replayed


def test_a_slowdown_without_a_late_rank_names_the_axis_whose_transfers_vary() -> None:
    figure = head(report_of(run_with("slow_link").tables))
    assert figure is not None
    assert "transfers on dp beyond their median cause" in figure.second
    repaired = head(report_of(run_with("slow_rank").tables))
    assert repaired is not None
    assert "cause" not in repaired.second


def test_a_slowdown_without_a_dominant_cause_says_so() -> None:
    tables = run_with("clean").tables
    search_result = replace(
        find_all(tables, EVERYTHING), ideal=IdealStep(step_ns=1e9, ideal_ns=5e8, error_fraction=0.02)
    )
    figure = head(build(tables, analyze(tables), name="x", search_result=search_result))
    assert figure is not None
    assert figure.second.endswith("no single rank causes most of it")


def test_a_slowdown_within_the_error_of_the_replay_is_marked() -> None:
    tables = run_with("clean").tables
    ideal = IdealStep(step_ns=100.0, ideal_ns=90.0, error_fraction=0.12)
    search_result = replace(find_all(tables, EVERYTHING), ideal=ideal)
    figure = head(build(tables, analyze(tables), name="x", search_result=search_result))
    assert figure is not None
    assert "within the replay's error of ±12.0%" in figure.second
    section = section_of_run(slowdown_on(Representatives(tables), ideal))
    assert "within the replay's error of ±12.0%" in sections_text("x", [section], color=False, width=200)


def nameless_exchanges(ranks: int) -> dict[int, Trace]:
    """Return ranks that exchange by unnamed kernels, with any number per rank; nothing identifies the peers."""
    traces = {rank: Trace(rank, 2) for rank in range(ranks)}
    for rank, trace in traces.items():
        for step in range(3):
            at = step * 20 * MS
            trace.step(step, at, 20 * MS).kernel("gemm", at + 100_000, 2 * MS, launch_at=at + 10_000)
            for number in range(rank + 1):
                begin = at + 3 * MS + number * 8 * MS
                trace.kernel("ncclDevKernel_SendRecv", begin, 7 * MS, launch_at=at + 20_000 + number * 30_000)
    return traces


def test_unmatched_exchanges_make_the_slowdown_unknown() -> None:
    """The ranks wait for most of the step, but their exchanges cannot be matched: 1.00 would be wrong."""
    document = report_of(table_set(nameless_exchanges(2)))
    figure = head(document)
    assert figure is not None
    assert figure.value is None
    assert "participants are unknown" in figure.second
    assert metric(document, "job_slowdown") == []


def test_a_single_rank_has_no_job_slowdown() -> None:
    assert head(report_of(table_set({0: nameless_exchanges(1)[0]}))) is None


@pytest.mark.real
@pytest.mark.skipif(not SLEEPING.is_dir(), reason="the trace is not available next to the project")
def test_the_job_slowdown_equals_the_replay_without_the_sleeping_rank(tmp_path: Path) -> None:
    tables = open_run(SLEEPING, cache_dir=tmp_path).tables
    figure = head(report_of(tables))
    assert figure is not None
    assert figure.value == slowdown_on(Representatives(tables), ideal_of(tables)).slowdown
    assert 1 - 1 / float(figure.value or 1) == pytest.approx(0.89, abs=0.02)
