"""Lead: a rank that was late before the recording is repaired in the first step, too."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NEVER
from usp_prof.replay.step_times import timeline_of, unedited
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.lead import gain_after_first_step, gain_without_lead
from usp_prof.whatif.predict import predict

US = 1_000
STEPS = 3


def _late_start(
    rank: int, late_us: int, late_ranks: tuple[int, ...] = (2,), ranks: int = 3, before: int | None = None
) -> Trace:
    """Work for 3 ms and reduce in each step, all on one stream; the launches of a step follow its start.

    Late ranks start their first step late. The others wait for them in a collective of the step before; late ranks ran
    their parts before they were recorded. With `before`, no part was recorded, but work on both sides of the wait; that
    before it ran on this stream.
    """
    trace = Trace(rank, ranks).group("0", list(range(ranks)), "dp")
    is_late, at = rank in late_ranks, late_us + 1_500
    begin = late_us if is_late else 0
    if before is not None and not is_late:
        trace.kernel("before the wait", 0, 300 * US, stream=before)
        trace.kernel("after the wait", (late_us + 500) * US, 1_000 * US, stream=7)
    elif not is_late:
        trace.collective("all_reduce", 1_000 * US, (late_us + 500) * US, group="0", sequence=0, stream=7)
    for step in range(STEPS):
        launch = (begin if step == 0 else at) * US
        trace.kernel("work", at * US, 3_000 * US, launch_at=launch + 100 * US)
        trace.collective(
            "all_reduce",
            (at + 3_000) * US,
            500 * US,
            group="0",
            sequence=step + 1,
            stream=7,
            launch_at=launch + 200 * US,
        )
        trace.step(step, launch, (at + 3_500) * US - launch)
        at += 3_500
    return trace


def _earlier(tables: TableSet, rank: int, repaired: str = "2") -> float:
    """Return by how many us the last work of a rank ends earlier if some ranks are repaired."""
    graph = as_recorded(tables).then(tables, Edit("rank_as_peers", repaired)).graph
    rows = graph.nodes.of_rank(rank)
    return float(graph.nodes.end[rows].max() - timeline_of(tables, graph).end[rows].max()) / US


@pytest.mark.parametrize("late_us", [4_000, 20_000])
def test_peers_do_not_wait_for_a_repaired_rank_in_calls_that_it_did_not_record(late_us: int) -> None:
    tables = table_set({rank: _late_start(rank, late_us) for rank in range(3)})
    assert [_earlier(tables, rank) for rank in range(3)] == pytest.approx([late_us] * 3, abs=600)


@pytest.mark.parametrize("before", [7, 9])
def test_peers_do_not_wait_for_a_repaired_rank_before_work_that_was_launched_before_the_recording(before: int) -> None:
    tables = table_set({rank: _late_start(rank, 4_000, before=before) for rank in range(3)})
    assert [_earlier(tables, rank) for rank in range(3)] == pytest.approx([4_000] * 3, abs=600)


def test_two_late_ranks_do_not_shorten_the_wait_for_them_twice() -> None:
    late_ranks = (3, 4)
    tables = table_set({rank: _late_start(rank, 4_000, late_ranks, 5) for rank in range(5)})
    graph = as_recorded(tables).then(tables, Edit("rank_as_peers", "3+4")).graph
    assert graph.transfer[graph.tied].min() >= 0
    assert [_earlier(tables, rank, "3+4") for rank in range(5)] == pytest.approx([4_000] * 5, abs=600)


def _queued_in_step(rank: int) -> Trace:
    """Reduce in each step; the first step contains work that was launched before, and waits for 2 ms within it."""
    trace = Trace(rank, 2).group("0", [0, 1], "dp")
    for step in range(STEPS):
        at = step * 6_000
        begin = at + 3_000 if step == 0 else at + 100
        if step == 0:
            trace.kernel("before the wait", at * US, 500 * US, correlation=900)
            trace.kernel("after the wait", (at + 2_500) * US, 500 * US, correlation=901)
        trace.kernel("work", begin * US, 3_000 * US if step else 1_000 * US, launch_at=(at + 20) * US)
        trace.collective(
            "all_reduce", (at + 5_000) * US, 500 * US, group="0", sequence=step, launch_at=(at + 40) * US, stream=7
        )
        trace.step(step, at * US, 6_000 * US)
    return trace


def test_waits_that_the_recording_does_not_explain_widen_the_error() -> None:
    tables = table_set({rank: _queued_in_step(rank) for rank in range(2)})
    prediction = predict(tables, [Edit("rank_as_peers", "1")])
    assert prediction.error_fraction > 0.05


def _drained(rank: int) -> Trace:
    """Begin the recording with a deep queue, which on rank 2 is empty until late; work for 3 ms and reduce per step.

    Other streams of the peers were idle for longer than the peers waited for rank 2.
    """
    trace = Trace(rank, 3).group("0", [0, 1, 2], "dp")
    begin = 8_000 if rank == 2 else 0
    if rank == 2:
        trace.kernel("queued", 9_000 * US, 1_000 * US)
    else:
        trace.kernel("queued", 0, 1_000 * US)
        trace.kernel("queued", 3_000 * US, 7_000 * US)
        trace.kernel("other", 0, 100 * US, stream=30)
        trace.kernel("other", 9_850 * US, 100 * US, stream=30)
    for step in range(STEPS):
        at = 10_000 + 3_500 * step
        launch = (begin if step == 0 else at) * US
        trace.kernel("work", at * US, 3_000 * US, launch_at=launch + 100 * US)
        reduced = (at + 3_000) * US
        trace.collective(
            "all_reduce", reduced, 500 * US, group="0", sequence=step, stream=7, launch_at=launch + 200 * US
        )
        trace.step(step, launch, (at + 3_500) * US - launch)
    return trace


def test_the_device_of_a_repaired_rank_starts_the_first_step_with_its_peers() -> None:
    """Its queue was empty, so nothing in its own trace holds it back, and its step got longer than it was."""
    tables = table_set({rank: _drained(rank) for rank in range(3)})
    graph = as_recorded(tables).then(tables, Edit("rank_as_peers", "2")).graph
    start, names = timeline_of(tables, graph).start, np.array(graph.names)[graph.nodes.name]
    first = [start[rows[names[rows] == "work"][0]] for rows in map(graph.nodes.of_rank, range(3))]
    assert first[2] >= first[0]


def test_the_error_includes_a_first_step_that_the_repair_made_longer() -> None:
    """No repair makes a step longer, so the gain of the later steps is the one to expect."""
    tables = table_set({rank: _late_start(rank, 4_000, before=9) for rank in range(3)})
    graph = as_recorded(tables).graph
    moved = graph.with_changes(earliest=np.where(graph.earliest > NEVER, graph.earliest - 1, graph.earliest))
    shortened = moved.with_changes(
        duration=np.where(graph.nodes.step > 0, graph.duration // 2, graph.duration * 5 // 4),
    )
    assert gain_after_first_step(graph, tables, 0.1) == 0.1
    assert gain_after_first_step(moved, tables, 0.1) == 0.1
    assert gain_after_first_step(shortened, tables, 0.1) > 0.2


def _runs_ahead(rank: int, launch_us: int) -> Trace:
    """Begin with a deep queue; the host launches ten kernels of 10 us per step, and needs as long as given for each."""
    trace, now = Trace(rank, 2), 0
    for kernel in range(40):
        trace.kernel("queued", kernel * 100 * US, 90 * US)
    for step in range(STEPS):
        begin = now
        for _ in range(10):
            trace.kernel("work", max(4_000 + now // 100, now + 5) * US, 10 * US, launch_at=now * US)
            now += launch_us
        trace.step(step, begin * US, (now - begin) * US)
    return trace


def test_in_the_long_run_a_step_takes_at_least_as_long_as_its_host() -> None:
    """The queue from before the recording lets devices run faster than hosts. The repair halves the host time."""
    tables = table_set({rank: _runs_ahead(rank, 300 if rank else 600) for rank in range(2)})
    recorded_ns = unedited(tables).mean_measured_ns
    repaired = as_recorded(tables).then(tables, Edit("rank_as_peers", "0")).graph
    assert gain_without_lead(repaired, tables, recorded_ns / 10) == pytest.approx(0.5, abs=0.01)
    assert gain_without_lead(repaired, tables, 0.6 * recorded_ns) == pytest.approx(0.4, abs=1e-6)


def test_steps_without_time_gain_nothing() -> None:
    """A step whose mark has no duration cannot get shorter, and is no reason to fail."""
    traces = {}
    for rank in range(2):
        traces[rank] = Trace(rank, 2)
        traces[rank].step(0, 0, 0)
    tables = table_set(traces)
    assert gain_without_lead(graph_of(tables), tables, 0.0) == 0.0
