"""Sections of a report, on a synthetic run with known ground truth and real analyses."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.analyses import step_time
from usp_prof.charts import inputs
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.inputs.discovery import discover
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.model.metric import Unit
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Chart, DataTable, Document, KeyFigures, Stack, Text
from usp_prof.report.format import share
from usp_prof.report.sections import steps
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

DECLARED = {"mesh": {"pp": 2, "tp": 2}, "work": {"schedule": "1F1B", "micro_batches": 4, "steps": 2}, "seed": 1}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder: Path = tmp_path_factory.mktemp("synth")
    write(Declaration.from_dict(DECLARED), folder / "run", described=True)
    opened = open_run(folder / "run", cache_dir=folder / "cache")
    return build(opened.tables, analyze(opened.tables), name=opened.name)


def blocks(document: Document, section: str) -> list[object]:
    (wanted,) = (candidate for candidate in document.sections if candidate.id == section)
    return list(wanted.blocks)


def chart(document: Document, section: str) -> inputs.ChartInput:
    (drawn,) = (block for block in blocks(document, section) if isinstance(block, Chart))
    return drawn.data


def tables(document: Document, section: str) -> dict[str, DataTable]:
    return {block.title: block for block in blocks(document, section) if isinstance(block, DataTable)}


def test_kernels_show_ops_by_shape_under_the_roof(document: Document) -> None:
    roof = chart(document, "kernels")
    assert isinstance(roof, inputs.RooflinePoints)
    assert len(roof.label) == len(roof.rate) > 3
    assert roof.peak_flops == pytest.approx(989e12, rel=0.01)
    assert 0 < roof.share.sum() <= 1
    ops = tables(document, "kernels")["Ops by shape, all ranks and steps together"]
    assert [column.head for column in ops.columns][:3] == ["op", "shapes", "time"]
    assert ops.columns[2].unit is Unit.NS


def test_collectives_show_bandwidth_over_size_with_the_links_peak(document: Document) -> None:
    points, sent = (block.data for block in blocks(document, "collectives") if isinstance(block, Chart))
    assert isinstance(sent, inputs.PeerMatrix)
    assert sent.bytes.sum() > 0
    assert np.all((sent.bytes > 0) == (sent.transfers > 0))
    assert isinstance(points, inputs.BandwidthPoints)
    assert set(points.axis) == {"tp", "pp"}
    assert points.peak == pytest.approx(450e9)
    assert points.peak_label.endswith("450 GB/s")
    assert "Sends and receives by pair" in tables(document, "collectives")


def test_the_schedule_has_one_row_per_stage_and_every_action(document: Document) -> None:
    drawn, ideal = (block.data for block in blocks(document, "pipeline") if isinstance(block, Chart))
    assert isinstance(drawn, inputs.PipelineSchedule)
    assert isinstance(ideal, inputs.PipelineSchedule)
    # The ideal is drawn below, with the same rows, scale and actions, but without lost time.
    assert (ideal.rows, ideal.until_ns) == (drawn.rows, drawn.until_ns)
    assert {*zip(ideal.kind, ideal.micro_batch.tolist(), strict=True)} == {
        *zip(drawn.kind, drawn.micro_batch.tolist(), strict=True)
    }
    assert ideal.end_ns.max() <= drawn.end_ns.max() == drawn.until_ns
    assert len(drawn.rows) == 2
    assert len(drawn.kind) == 2 * 4 * 2
    assert set(drawn.kind) == {"F", "B"}
    assert drawn.start_ns.min() == 0
    text = " ".join(block.text for block in blocks(document, "pipeline") if isinstance(block, Text))
    assert "4 micro-batches on 2 stages" in text
    assert "100.0%" in text
    stages = tables(document, "pipeline")["Stages, median length of an action"]
    assert [row[0] for row in stages.rows] == [0, 1]
    assert [column.head for column in stages.columns] == ["stage", "ranks", "micro-batch", "F", "B"]


def test_the_pipeline_of_the_rank_that_the_others_wait_for_is_drawn(tmp_path: Path) -> None:
    described = DECLARED | {"mesh": {"pp": 2, "dp": 2}, "faults": [{"kind": "slow_rank", "rank": 3, "factor": 2.0}]}
    write(Declaration.from_dict(described), tmp_path / "run", described=True)
    opened = open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    made = build(opened.tables, analyze(opened.tables), name=opened.name)
    drawn, ideal = (block for block in blocks(made, "pipeline") if isinstance(block, Chart))
    assert isinstance(drawn.data, inputs.PipelineSchedule)
    assert isinstance(ideal.data, inputs.PipelineSchedule)
    place = opened.tables.topology.coordinates[3]["dp"]
    assert f"in the pipeline (dp {place}) of rank 3, for which the others wait" in drawn.title
    members = [rank for rank, coordinates in opened.tables.topology.coordinates.items() if coordinates["dp"] == place]
    assert drawn.data.rows == tuple(f"rank {rank}, stage {stage}" for stage, rank in enumerate(sorted(members)))
    # The ideal order has the durations and the names of the first pipeline.
    assert ideal.data.rows == ("rank 0, stage 0", f"rank {sorted(set(range(4)) - set(members))[1]}, stage 1")
    assert ideal.title.endswith("measured on the first pipeline's ranks")
    assert ideal.data.label_characters == drawn.data.label_characters


@pytest.mark.parametrize("rank", range(4))
def test_a_pipeline_rank_that_lost_its_only_step_mark_is_reported(tmp_path: Path, rank: int) -> None:
    described = DECLARED | {
        "mesh": {"pp": 2, "dp": 2},
        "work": {"steps": 1, "micro_batches": 4, "first_step": 3},
        "style": "gloo",
    }
    write(Declaration.from_dict(described), tmp_path / "run", described=True)
    file = next(file.path for file in discover(tmp_path / "run").runs[0].files if file.rank == rank)
    trace = json.loads(gzip.decompress(file.read_bytes()))
    trace["traceEvents"] = [event for event in trace["traceEvents"] if "ProfilerStep" not in event["name"]]
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    report = open_run(tmp_path / "run", cache_dir=tmp_path / "cache").report()
    for form in ("markdown", "html"):
        assert report.text(form)


def test_mfu_names_every_convention(document: Document) -> None:
    by = tables(document, "mfu")["By convention"]
    assert [row[0] for row in by.rows] == ["palm", "matmul", "causal"]


def test_overlap_names_what_hides_it(document: Document) -> None:
    shown = tables(document, "overlap")
    assert "By kind of collective, mean over ranks" in shown
    bars = chart(document, "overlap")
    assert isinstance(bars, inputs.AxisCommunication)
    assert bars.axes == ("tp", "pp")


def test_host_shows_what_blocks(document: Document) -> None:
    table_of_title = tables(document, "host")
    assert [column.head for column in table_of_title["Runtime calls, all ranks together"].columns][:3] == [
        "name",
        "kind",
        "count",
    ]
    blocking = table_of_title["What blocks the host, all ranks together"]
    assert [column.head for column in blocking.columns] == ["name", "cause", "count", "time", "longest", "most at rank"]
    assert len({row[:2] for row in blocking.rows}) == len(blocking.rows)


def test_host_calls_are_summed_over_ranks_and_name_the_rank_with_most() -> None:
    def made(rank: int) -> Trace:
        run = Trace(rank, 2).step(1, 0, 90_000).op("aten::item", 100, 5_000 + rank)
        run.launch(1, 200, 3_000 + rank, name="cudaStreamSynchronize")
        return run.launch(2, 10_000, 10).kernel("k", 10_100 + 50 * rank, 500, correlation=2)

    run = table_set({rank: made(rank) for rank in range(2)})
    host = next(
        s
        for s in build(run, analyze(run, only=["host"]), name="x", search_result=NOTHING_FOUND).sections
        if s.id == "host"
    )
    table_of_title = {block.title: block for block in host.blocks if isinstance(block, DataTable)}
    blocking = table_of_title["What blocks the host, all ranks together"].rows
    assert blocking == (("cudaStreamSynchronize", "aten::item", 2, 6_001, 3_001, 1),)
    calls = {row[0]: row for row in table_of_title["Runtime calls, all ranks together"].rows}
    assert calls["cudaLaunchKernel"] == ("cudaLaunchKernel", "launch", 2, 20, 2, 125, 150, 0)
    assert table_of_title["Ops by the host's own time, all ranks together"].rows[0][:2] == ("aten::item", 2)


def test_the_first_screen_shows_bubble_and_mfu(document: Document) -> None:
    labels = {figure.label for block in document.summary.blocks for figure in getattr(block, "figures", ())}
    assert {"step", "MFU", "tokens", "exposed comm", "bubble"} <= labels


def test_exposed_communication_matches_the_bar(document: Document) -> None:
    figures = {figure.label: figure for block in document.summary.blocks for figure in getattr(block, "figures", ())}
    (stack,) = (block for block in document.summary.blocks if isinstance(block, Stack))
    exposed = sum(part.value for part in stack.parts if part.role.startswith("comm:"))
    assert figures["exposed comm"].value == pytest.approx(exposed)
    assert figures["exposed comm"].second.startswith(share(exposed, stack.total))


def test_the_critical_path_is_a_bar_whose_parts_add_up(document: Document) -> None:
    (stack,) = (block for block in blocks(document, "critical_path") if isinstance(block, Stack))
    assert sum(part.value for part in stack.parts) == pytest.approx(stack.total)
    assert "compute" in {part.role for part in stack.parts}
    assert all(part.label != part.role or ":" not in part.role for part in stack.parts)
    ranks = tables(document, "critical_path")["Ranks"]
    assert sum(row[2] or 0 for row in ranks.rows) == pytest.approx(1)


def test_clocks_and_memory_leave_out_unknown_columns(document: Document) -> None:
    heads = [column.head for column in tables(document, "clock")["Ranks"].columns]
    assert heads[:3] == ["rank", "host", "offset"]
    assert "drift ppm" not in heads
    assert "Copies" in tables(document, "memory")


def test_many_ranks_are_shown_as_outliers_and_the_mean_of_the_others() -> None:
    values = [10.0] * 512
    values[300] = 30.0
    rows = inputs.BreakdownRows(
        tuple(f"rank {rank}" for rank in range(512)), (inputs.Part("compute", "compute", tuple(values)),)
    )
    shortened = steps.readable(rows)
    assert len(shortened.labels) == 40
    assert shortened.labels[0] == "mean of 473 others"
    assert shortened.parts[0].values_ns[0] == 10.0
    assert shortened.parts[0].values_ns[shortened.labels.index("rank 300")] == 30.0


def test_few_ranks_are_all_shown() -> None:
    rows = inputs.BreakdownRows(("rank 0",), (inputs.Part("compute", "compute", (1.0,)),))
    assert steps.readable(rows) is rows


def test_ranks_are_placed_by_their_axes(document: Document) -> None:
    grid = next(
        block.data
        for block in blocks(document, "step_time")
        if isinstance(block, Chart) and isinstance(block.data, inputs.RankGrid)
    )
    assert sorted(grid.rank.ravel().tolist()) == [0, 1, 2, 3]
    assert np.all(grid.values_ns > 0)


def test_the_step_states_how_many_steps_its_median_has(tmp_path: Path) -> None:
    """It counted the outliers, which the median leaves out."""
    declared = {"mesh": {"dp": 2, "pp": 2}, "work": {"steps": 3, "micro_batches": 4}}
    slow = {"kind": "slow_rank", "rank": 1, "factor": 1.4}
    write(Declaration.from_dict({**declared, "faults": [slow]}), tmp_path / "run")
    opened = open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    timed = step_time.compute(opened.tables)
    assert len(timed.ordinary) < len(timed.job)
    head = opened.report().document.summary.blocks[0]
    assert isinstance(head, KeyFigures)
    assert head.figures[0].second.startswith(f"median of {len(timed.ordinary)} steps (")
    assert "1 outlier excluded" in head.figures[0].second
