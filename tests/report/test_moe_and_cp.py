"""Sections Experts and Context parallelism: small runs with known loads, up to the screen."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from rich.console import Console
from tiny import Trace, table_set

from usp_prof.charts.inputs import RankBars
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.model.metric import Unit
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Chart, DataTable, Document, Health, KeyFigures
from usp_prof.report.writers import json_text, markdown, terminal, webpage

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.report.document import Section


def routed(rank: int, loads: list[tuple[int, int]], *, counted: bool = True) -> Trace:
    run = Trace(rank=rank, world=2, device="cpu").group("1", [0, 1], "mesh_ep").step(3, at=0, dur=10_000)
    for number, (first, second) in enumerate(loads):
        at = 1_000 * number
        experts = f" experts={first},{second}" if counted else ""
        run.op("aten::mm", at=at, dur=5, dims=[[2, 2], [2, 2]])
        run.mark("ep::dispatch", at=at + 10, dur=100)
        run.mark(f"ep::load tokens={first + second}{experts}", at=at + 200, dur=50 * (first + second))
        run.mark("ep::combine", at=at + 900, dur=40)
        run.gloo("all_to_all", at=at + 20, dur=80, posted_at=at + 11, group="1", sequence=number)
    return run


def ringed(rank: int, *, marks: bool = True) -> Trace:
    run = Trace(rank=rank, world=2, device="cpu").group("1", [0, 1], "mesh_cp").step(3, at=0, dur=10_000)
    run.op("aten::bmm", at=100, dur=1_000 + 2_000 * rank)
    run.gloo("send", at=5_000, dur=10, thread=100, posted_at=4_990, group="1", peer=1 - rank)
    for number in range(2 if marks else 0):
        run.mark(f"cp::ring_send_recv step={number}", 6_000 + 100 * number, 20)
        run.mark(f"cp::ring_wait step={number}", 6_030 + 100 * number, 60 - 40 * rank + number)
    return run


def document(make: Callable[[int], Trace]) -> Document:
    tables = table_set({rank: make(rank) for rank in range(2)})
    return build(tables, analyze(tables), name="run", search_result=NOTHING_FOUND)


def section(report: Document, name: str) -> Section | None:
    return next((candidate for candidate in report.sections if candidate.id == name), None)


def tables_of(report_section: Section | None) -> dict[str, DataTable]:
    assert report_section is not None
    return {block.title: block for block in report_section.blocks if isinstance(block, DataTable)}


def chart_of(report_section: Section | None) -> RankBars:
    assert report_section is not None
    (chart,) = (block.data for block in report_section.blocks if isinstance(block, Chart))
    assert isinstance(chart, RankBars)
    return chart


def test_experts_are_shown_by_expert_by_rank_and_by_routing() -> None:
    shown = section(document(lambda rank: routed(rank, [(6, 2), (1, 1)] if rank else [(2, 2), (1, 1)])), "moe")
    bars = chart_of(shown)
    assert bars.labels == ("expert 0", "expert 1", "expert 2", "expert 3")
    assert bars.values == (3.0, 3.0, 7.0, 3.0)
    assert bars.even == (4.0,) * 4
    tables = tables_of(shown)
    assert tables["By expert, per step, fullest first"].rows[0] == (2, 7, 7 / 4)
    by_rank = tables["By rank, per step"]
    heads = [column.head for column in by_rank.columns]
    assert heads == ["rank", "tokens", "vs. group mean", "dispatch", "experts", "combine", "all-to-all"]
    assert by_rank.rows[1][:5] == (1, 10.0, 10 / 8, 200.0, 500.0)
    worst = tables["Most uneven routings"]
    assert worst.rows[0] == (3, 0, 1, 8, 6.0, 8 / 6)
    assert worst.rows[1][-1] == 1.0
    assert shown is not None
    figures = {f.label: f.value for block in shown.blocks if isinstance(block, KeyFigures) for f in block.figures}
    assert figures["Fullest expert"] == 7 / 4
    assert figures["Dispatch"] == 200.0


def test_without_expert_counts_ranks_are_drawn() -> None:
    shown = section(document(lambda rank: routed(rank, [(6, 2)] if rank else [(2, 2)], counted=False)), "moe")
    assert chart_of(shown).labels == ("rank 0", "rank 1")
    assert chart_of(shown).values == (4.0, 8.0)
    assert chart_of(shown).even == (6.0, 6.0)


def test_loads_from_sizes_are_bytes() -> None:
    def made(rank: int) -> Trace:
        run = Trace(rank=rank, world=2).group("1", [0, 1], "mesh_ep").step(1, at=0, dur=10_000)
        out = 30 if rank else 10
        run.collective("all_to_all", 1_000, 100, group="1", nelems=20, out_nelems=out, launch_at=900, sequence=0)
        return run

    shown = section(document(made), "moe")
    tables = tables_of(shown)
    assert [column.unit for column in tables["Most uneven routings"].columns][3:5] == [Unit.BYTES, Unit.BYTES]
    assert [column.head for column in tables["By rank, per step"].columns] == ["rank", "all-to-all"]


def test_sequence_parts_are_shown_with_their_mean_and_waits_by_ring_step() -> None:
    shown = section(document(ringed), "cp")
    bars = chart_of(shown)
    assert (bars.labels, bars.values, bars.unit) == (("rank 0", "rank 1"), (1_000.0, 3_000.0), Unit.NS)
    assert bars.even == (2_000.0, 2_000.0)
    tables = tables_of(shown)
    assert [row[3] for row in tables["By rank, per step"].rows] == [0.5, 1.5]
    # Ring step, mean, shortest, longest, rank of the longest: the early rank waits.
    assert tables["Waiting by ring step, per exchange"].rows == ((0, 40.0, 20.0, 60.0, 0), (1, 41.0, 21.0, 61.0, 0))


def test_each_group_has_its_own_mean() -> None:
    def made(rank: int) -> Trace:
        run = Trace(rank=rank, world=4, device="cpu").step(3, at=0, dur=10_000)
        for members in ([0, 1], [2, 3]):
            run.group(f"g{members[0]}", members, "mesh_cp")
        return run.op("aten::bmm", at=100, dur=1_000 * (rank + 1))

    tables = table_set({rank: made(rank) for rank in range(4)})
    shown = section(build(tables, analyze(tables), name="run", search_result=NOTHING_FOUND), "cp")
    assert chart_of(shown).even == (1_500.0, 1_500.0, 3_500.0, 3_500.0)


def test_without_marks_the_ring_is_reported_as_unknown() -> None:
    shown = section(document(lambda rank: ringed(rank, marks=False)), "cp")
    assert list(tables_of(shown)) == ["By rank, per step"]
    assert shown is not None
    assert [row.code for block in shown.blocks if isinstance(block, Health) for row in block.rows] == ["no_cp_marks"]


def test_a_dense_run_on_one_sequence_has_neither() -> None:
    plain = document(lambda rank: Trace(rank, 2, device="cpu").step(1, 0, 100).op("aten::mm", 1, 50))
    assert section(plain, "moe") is None
    assert section(plain, "cp") is None


@pytest.mark.parametrize("make", [lambda rank: routed(rank, [(6, 2 * rank)]), ringed], ids=["moe", "cp"])
def test_every_writer_shows_moe_and_cp(make: Callable[[int], Trace]) -> None:
    built = document(make)
    wanted = "moe" if section(built, "moe") else "cp"
    file = io.StringIO()
    terminal.write(built, Console(file=file, width=80), (wanted,))
    assert "By rank, per step" in file.getvalue()
    assert max(map(len, file.getvalue().splitlines())) <= 80
    assert "By rank, per step" in markdown.write(built)
    assert "By rank, per step" in webpage.write([built])
    report = json.loads(json_text.write(built))
    jsonschema.validate(report, json_text.json_schema())
    ids = {metric["id"] for metric in report["metrics"]}
    assert {"moe_imbalance", "expert_tokens"} <= ids or {"cp_imbalance", "ring_wait_time"} <= ids
