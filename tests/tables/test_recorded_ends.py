"""Steps cut by the end of the recording: which are marked, and which selections include them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.analyses import breakdown, host, kernels, overlap, step_time, stragglers
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.replay.build import graph_of
from usp_prof.replay.step_times import timeline_of
from usp_prof.run import open_run
from usp_prof.timeline.store import job_steps
from usp_prof.whatif.predicted_tables import retimed

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

TRACES = Path(__file__).parents[2] / "traces"
US = 1_000
WORK = 600 * US


def _rank(*waits: int, rank: int = 0, last: int = WORK) -> Trace:
    """Make steps of one kernel each, with these waits between them; the last kernel is the rank's last work."""
    trace, at = Trace(rank=rank, world=2), 0
    for number, wait in enumerate((*waits, 0)):
        length = last if number == len(waits) else WORK
        trace.step(number, at, length + wait).op("aten::mm", at, 20 * US)
        trace.kernel("gemm", at + 10 * US, length, launch_at=at + 5 * US)
        at += length + wait
    return trace


def _marks(tables: TableSet, rank: int = 0) -> list[bool]:
    marks: list[bool] = tables.columns("steps", rank)["is_cut"].tolist()
    return marks


@pytest.mark.parametrize(
    ("trace", "cut_steps"),
    [
        (_rank(300 * US, 300 * US), (2,)),
        (_rank(300 * US), (1,)),
        (_rank(30 * US, 30 * US), ()),
        (_rank(300 * US, 300 * US, last=900 * US), ()),
        (_rank(), ()),
    ],
    ids=["long waits", "one wait", "short waits", "as long as the others", "one step"],
)
def test_a_last_step_without_the_wait_of_the_others_is_cut(trace: Trace, cut_steps: tuple[int, ...]) -> None:
    tables = table_set(trace)
    assert tables.cut_steps == cut_steps
    assert _marks(tables) == [number in cut_steps for number in tables.columns("steps", 0)["step"].tolist()]
    assert [row.count for row in tables.health if row.code == "steps_cut"] == [1] * len(cut_steps)


def test_a_step_that_work_follows_is_complete() -> None:
    trace = _rank(300 * US, 300 * US).kernel("late", 4_000 * US, 10 * US, launch_at=2_900 * US)
    assert table_set(trace).cut_steps == ()


def test_a_step_cut_on_half_of_the_ranks_counts_on_none() -> None:
    tables = table_set({0: _rank(300 * US, 300 * US), 1: _rank(30 * US, 30 * US, rank=1)})
    assert tables.cut_steps == (2,)
    assert step_time.compute(tables).step.tolist() == [0, 1, 0, 1]


def test_a_step_that_lacks_a_wait_on_few_ranks_counts() -> None:
    """The waits before were delays of this rank."""
    ranks = {rank: _rank(30 * US, 30 * US, rank=rank) for rank in (1, 2)}
    tables = table_set({0: _rank(300 * US, 300 * US), **ranks})
    assert (tables.cut_steps, _marks(tables)) == ((), [False, False, True])


def test_a_cut_step_counts_if_a_rank_has_no_other() -> None:
    tables = table_set({0: _rank(300 * US, 300 * US), 1: Trace(rank=1, world=2).step(2, 0, WORK).kernel("k", 10, 90)})
    assert tables.cut_steps == ()


@pytest.mark.parametrize(
    ("selection", "steps"),
    [
        (EVERYTHING, [0, 1]),
        (Selection(ranks=(0,)), [0, 1]),
        (Selection(first_step=1), [1]),
        (Selection(last_step=2), [0, 1, 2]),
        (Selection(first_step=2), [2]),
        (Selection(first_step=2, last_step=2), [2]),
    ],
)
def test_only_a_selection_that_names_a_cut_step_includes_it(selection: Selection, steps: list[int]) -> None:
    tables = table_set(_rank(300 * US, 300 * US))
    assert step_time.compute(tables, selection).step.tolist() == steps
    assert breakdown.compute(tables, selection).parts.step.tolist() == steps
    assert overlap.compute(tables, selection).parts.step.tolist() == steps
    assert stragglers.compute(tables, selection).listing()
    assert kernels.compute(tables, selection).total_ns == WORK * len(steps)
    (of_rank,) = host.compute(tables, selection).ranks
    assert of_rank.launches == 1.0


def test_some_ranks_and_predictions_leave_out_the_same_steps() -> None:
    tables = table_set({0: _rank(300 * US, 300 * US), 1: _rank(30 * US, 30 * US, rank=1)})
    assert step_time.compute(tables.only([1])).step.tolist() == [0, 1]
    replayed = retimed(tables, graph_of(tables), timeline_of(tables, graph_of(tables)))
    assert step_time.compute(replayed).step.tolist() == [0, 1, 0, 1]


def test_the_timeline_shows_a_cut_step(tmp_path: Path) -> None:
    tables = open_run(TRACES / "gpu-late-input", cache_dir=tmp_path).tables
    assert tables.cut_steps == (29,)
    assert [step.number for step in job_steps(tables)] == [27, 28, 29]
