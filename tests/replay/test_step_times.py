"""Step of a wait: the step of the waiting work, even at the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_training import Delay, Job
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.step_times import step_times, timeline_of, unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

US = 1_000
STEP, WAIT = 1_000 * US, 100 * US


def _trace(rank: int) -> Trace:
    """Make three steps, each of which starts with a wait for its input."""
    trace = Trace(rank=rank, world=2, device="cpu")
    for number in range(3):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.mark("train::input", at, WAIT)
        trace.mark("train::forward", at + WAIT, 300 * US).op("aten::mm", at + WAIT, 300 * US)
        trace.mark("train::backward", at + 400 * US, 590 * US).op("aten::mm", at + 400 * US, 590 * US)
    return trace


def test_an_edit_removes_the_wait_of_each_step() -> None:
    tables = table_set({rank: _trace(rank) for rank in range(2)})
    prediction = predict(tables, [parse_edit("no_input_wait")])
    assert prediction.before_ns == STEP
    assert prediction.after_ns == pytest.approx(STEP - WAIT, abs=US)


def _on_a_device(waits: tuple[int, ...], last: int = 600 * US) -> Trace:
    """Make steps of one kernel each, with waits between them; the last kernel is the last work of all."""
    trace = Trace()
    at = 0
    for number, wait in enumerate((*waits, 0)):
        length = last if number == len(waits) else 600 * US
        trace.step(number, at, length + wait).op("aten::mm", at, 20 * US)
        trace.kernel("gemm", at + 10 * US, length, launch_at=at + 5 * US)
        at += length + wait
    return trace


@pytest.mark.parametrize(
    ("waits", "last", "complete_steps"),
    [
        ((300 * US, 300 * US), 600 * US, [0, 1]),  # a long wait, which is missing in the last step
        ((300 * US,), 600 * US, [0]),
        ((30 * US, 30 * US), 600 * US, [0, 1, 2]),
        ((300 * US, 300 * US), 900 * US, [0, 1, 2]),  # as long as the others, but with different content
        ((), 600 * US, [0]),
    ],
)
def test_a_step_cut_by_the_recording_is_not_in_the_mean(
    waits: tuple[int, ...], last: int, complete_steps: list[int]
) -> None:
    times = unedited(table_set({0: _on_a_device(waits, last)}))
    assert times.step[times.is_complete].tolist() == complete_steps


def test_a_step_lasts_until_the_next_one_starts_its_work_even_if_its_own_work_gets_shorter() -> None:
    tables = table_set({0: _on_a_device((300 * US, 300 * US))})
    graph = graph_of(tables)
    half = np.where(graph.nodes.of_host, graph.duration, graph.duration // 2)
    edited = graph.with_changes(duration=half)
    times = step_times(tables, edited, timeline_of(tables, edited))
    assert times.replayed_ns.tolist() == [900 * US, 900 * US, 300 * US]


def test_the_unedited_replay_keeps_step_boundaries() -> None:
    times = unedited(table_set({rank: _trace(rank) for rank in range(2)}))
    assert times.replayed_ns.tolist() == times.measured_ns.tolist() == [STEP] * 6


def _begun_at(begin: int, gemm: int, rank: int) -> Trace:
    """Make a step of one kernel and a collective that both ranks end at 1,200 us."""
    trace = Trace(rank=rank, world=2).group("0", [0, 1]).step(0, 0, 2_000 * US)
    trace.kernel("gemm", begin + 10 * US, gemm, launch_at=begin)
    ready = begin + 10 * US + gemm
    return trace.collective("all_reduce", ready, 1_200 * US - ready, group="0", sequence=1, launch_at=begin + 40 * US)


def test_a_first_step_gets_no_longer_because_its_work_starts_earlier() -> None:
    traces = {0: _begun_at(10 * US, 1_000 * US, 0), 1: _begun_at(510 * US, 200 * US, 1)}  # rank 0 is the last to arrive
    tables = table_set(traces)
    prediction = predict(tables, [parse_edit("host_as_peers=1")])
    nodes = prediction.graph.nodes
    earlier = prediction.timeline.start < nodes.start
    assert set(nodes.rank[earlier & ~nodes.of_host]) == {1}
    assert prediction.gain_fraction == 0


def test_a_last_step_is_complete_if_only_one_rank_waited_before(tmp_path: Path) -> None:
    """The input of one rank was late once, so its other steps end with a wait on average, and the last one does not."""
    job = Job("replicas", 5)
    job.loading = 50.0
    job.simulate(Delay("late_input", 2, 40_000, only_in=3), 6)
    job.write(tmp_path / "run")
    assert unedited(open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables).is_complete.all()
