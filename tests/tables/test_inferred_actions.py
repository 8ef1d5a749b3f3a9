"""Inferred actions: runs without marks, compared with the removed marks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import declared
import pytest
import unmarked
from tiers import thinned
from tiny import Trace, table_set

from usp_prof.analyses import pipeline
from usp_prof.extras.synth.declaration import Declaration, Mesh, Shape, Style, Work
from usp_prof.run import open_run
from usp_prof.tables.pipeline.inferred_actions import Turn, by_named_order, counted

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

ROOT = Path(__file__).parents[2]
GLOO = ROOT.parent / "shared" / "traces" / "gloo"
MS = 1_000_000
F, B, FS, BS = Turn(0, sends=False), Turn(1, sends=False), Turn(0, sends=True), Turn(1, sends=True)


def actions(tables: TableSet) -> dict[tuple[object, ...], tuple[int, int]]:
    """Return the device time of each action, by its identity."""
    times_of = {}
    for rank in tables.ranks:
        columns = tables.columns("actions", rank)
        names = zip(*(columns[name].tolist() for name in ("step", "stage", "kind", "micro_batch")), strict=True)
        times = zip(columns["device_start_ns"].tolist(), columns["device_end_ns"].tolist(), strict=True)
        times_of |= {(rank, *name): time for name, time in zip(names, times, strict=True)}
    return times_of


def sources(tables: TableSet) -> set[str]:
    return {source for rank in tables.ranks for source in tables.columns("actions", rank)["source"].tolist()}


def compare(run: Path, folder: Path, *, apart: float) -> None:
    """Compare the actions inferred from a stripped run with the marks of the full one."""
    marked = open_run(run, cache_dir=folder / "cache").tables
    bare = unmarked.without_marks(run, folder / "bare")
    assert sources(bare) == {"inferred"}
    assert actions(bare).keys() == actions(marked).keys()
    expected, other = pipeline.compute(marked), pipeline.compute(bare)
    assert other.schedule.schedule is expected.schedule.schedule
    assert other.schedule.likeness == 1
    assert other.bubble_fraction() == pytest.approx(expected.bubble_fraction(), abs=apart)
    assert "pipeline_inferred" in [note.code for note in other.notes]
    assert "pipeline_inferred" not in [note.code for note in expected.notes]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["recorded-1f1b", "recorded-interleaved", "recorded-5d"])
def test_a_recorded_run_without_its_marks_has_the_same_actions(run: str, tmp_path: Path) -> None:
    compare(ROOT / "traces" / run, tmp_path, apart=0.006)


@pytest.mark.real
@pytest.mark.skipif(not GLOO.is_dir(), reason="the corpus of real traces is not here")
@pytest.mark.parametrize(
    ("run", "apart"),
    thinned(
        [
            ("pp4-paced-GPipe-4r", 0.01),
            ("pp4-paced-1F1B-4r", 0.01),
            ("pp2-cp2-tp2-8r", 0.006),
            ("5d-pp2-dp2-cp2-tp2-ep4-ring-16r", 0.006),
            # Its marks include a millisecond of Python around each of 384 actions of 25 ms; inferred actions do not.
            ("pp4-paced-InterleavedZeroBubble-4r", 0.04),
        ],
        2,
    ),
)
def test_a_run_of_the_corpus_without_its_marks_has_the_same_actions(run: str, apart: float, tmp_path: Path) -> None:
    compare(GLOO / run, tmp_path, apart=apart)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved", "interleaved-zb", "zbv"])
def test_a_simulated_gpu_run_without_its_marks_has_the_same_actions(schedule: str, tmp_path: Path) -> None:
    chunks = 1 if schedule in {"gpipe", "1f1b", "zb-h1"} else 2
    plan = Work(schedule=schedule, virtual_stages=chunks, micro_batches=8, steps=2)
    run = Declaration(style=Style.NCCL, mesh=Mesh(pp=4, tp=2), shape=Shape(layers=8), work=plan)
    marked, _ = declared.read(run, tmp_path)
    bare = unmarked.without_marks(tmp_path / "run", tmp_path / "bare")
    assert actions(bare).keys() == actions(marked).keys()
    expected, other = pipeline.compute(marked), pipeline.compute(bare)
    assert other.bubble_fraction() == pytest.approx(expected.bubble_fraction(), abs=0.001)
    if "z" not in schedule:  # input and weight gradients without a gap can be separated only roughly
        assert other.stages == expected.stages


def test_plain_torch_marks_get_their_stage_from_the_first_sender(tmp_path: Path) -> None:
    """GPipe's `Forward 3` names no stage."""
    tables = table_set({rank: plain_pipeline(rank) for rank in range(2)})
    assert sources(tables) == {"torch"}
    assert {(rank, stage) for rank, _, stage, *_ in actions(tables)} == {(0, 0), (1, 1)}
    result = pipeline.compute(tables)
    assert result.schedule.likeness == 1
    assert result.micro_batches == 2


def plain_pipeline(rank: int) -> Trace:
    """Two micro-batches forward, then backward, on one of two stages, as torch's GPipe marks them."""
    trace = Trace(rank, 2, device="cpu").group("pp", [0, 1], "mesh_pp").step(1, 0, 20 * MS)
    for number in range(2):
        begin = (1 + 2 * number + rank) * MS
        trace.mark(f"Forward {number}", begin, MS).op("aten::mm", begin, MS - 1000)
        trace.gloo("recv" if rank else "send", begin - 900 if rank else begin + MS, 500, group="pp", peer=1 - rank)
    for number in range(2):
        begin = (10 + 2 * number + 1 - rank) * MS
        trace.mark(f"Backward {number}", begin, MS).op("aten::mm", begin, MS - 1000)
        trace.gloo("send" if rank else "recv", begin + MS if rank else begin - 900, 500, group="pp", peer=1 - rank)
    return trace


def test_unnamed_orders_are_numbered_and_unlikely_ones_have_only_kinds() -> None:
    turns = [enumerate([FS, FS, B, FS, B, B]), enumerate([F, BS, F, F, BS, BS])]
    orders = [list(of_rank) for of_rank in turns]
    assert by_named_order(orders) == []
    assert [action for turn in counted(orders)[0] for action in turn.actions] == [
        ("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("F", 0, 2), ("B", 0, 1), ("B", 0, 2)
    ]  # fmt: skip
    lopsided = [list(enumerate([FS, B])), list(enumerate([F, BS, F, BS]))]
    assert by_named_order(lopsided) == []
    assert {action[1:] for of_rank in counted(lopsided) for turn in of_rank for action in turn.actions} == {(-1, -1)}
