"""Partition of the step: exact, and equal to a walk over every nanosecond."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import made
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from made import part, step, work

from usp_prof.analyses import breakdown, overlap, step_time
from usp_prof.analyses.measures.partition import CAUSES
from usp_prof.model.selection import Selection

SPAN = 60
BASE = 1_700_000_000_000_000_001
activity = st.tuples(
    st.sampled_from(["compute", "compute", "memcpy", "memset", "dp", "tp", "unknown"]),
    st.integers(0, SPAN),
    st.integers(0, SPAN),
)
cuts = st.lists(st.integers(0, SPAN), min_size=2, max_size=4, unique=True).map(sorted)


def device(ranges: list[tuple[str, int, int]]) -> list[made.Row]:
    return [
        work(label, BASE + a, BASE + max(a, b))
        if label in {"compute", "memcpy", "memset"}
        else work("communication", BASE + a, BASE + max(a, b), label)
        for label, a, b in ranges
    ]


def steps(borders: list[int]) -> list[made.Row]:
    return [step(number, BASE + a, BASE + b) for number, (a, b) in enumerate(pairwise(borders))]


def owner(ranges: list[tuple[str, int, int]], moment: int) -> str:
    """Return the owner of a nanosecond according to the definitions."""
    order = ("dp", "tp", "unknown")  # if two end together, the first one wins
    running = [(label, b) for label, a, b in ranges if a <= moment < b]
    talking = [(-b, order.index(label), label) for label, b in running if label in order]
    if any(label == "compute" for label, _ in running):
        return "compute"
    if talking:
        return min(talking)[2]
    return "memcpy" if running else "idle"


@given(st.lists(activity, max_size=12), cuts)
def test_every_nanosecond_has_one_owner_and_they_add_up(ranges: list[tuple[str, int, int]], borders: list[int]) -> None:
    result = breakdown.compute(made.run({0: {"activities": device(ranges), "steps": steps(borders)}}))
    p = result.parts
    parts_ns = p.compute + p.exposed.sum(axis=1) + p.memcpy + p.idle.sum(axis=1)
    assert parts_ns.tolist() == [b - a for a, b in pairwise(borders)]
    for row, (a, b) in enumerate(pairwise(borders)):
        owners = [owner(ranges, moment) for moment in range(a, b)]
        assert p.compute[row] == owners.count("compute")
        assert p.memcpy[row] == owners.count("memcpy")
        assert p.idle[row].sum() == owners.count("idle")
        assert p.exposed[row].tolist() == [owners.count(axis) for axis in p.axes]


@given(st.lists(activity, max_size=12), cuts)
def test_overlap_and_breakdown_are_two_views_of_one_sweep(
    ranges: list[tuple[str, int, int]], borders: list[int]
) -> None:
    p = overlap.compute(made.run({0: {"activities": device(ranges), "steps": steps(borders)}})).parts
    for row, (a, b) in enumerate(pairwise(borders)):
        for column, axis in enumerate(p.axes):
            truth = {m for label, low, high in ranges if label == axis for m in range(max(low, a), min(high, b))}
            assert p.comm[row, column] == len(truth)
        lone = [[w for w, low, high in ranges if low <= m < high] for m in range(a, b)]
        alone = [{w for w in running if w in p.axes} for running in lone if "compute" not in running]
        assert p.any_contended[row] == sum(len(axes) > 1 for axes in alone)
        assert p.any_comm[row] == sum(any(w in p.axes for w in running) for running in lone)
        owners = [owner(ranges, moment) for moment in range(a, b)]
        for column, axis in enumerate(p.axes):
            hidden = sum(axis in running and "compute" in running for running in lone)
            contended = sum(
                axis in axes and owner_of_moment != axis
                for axes, owner_of_moment in zip(alone, _on_device(owners), strict=True)
            )
            assert (p.hidden[row, column], p.contended[row, column]) == (hidden, contended)
    assert (p.comm == p.hidden + p.exposed + p.contended).all()
    assert (p.any_comm == p.any_hidden + p.exposed.sum(axis=1)).all()


def _on_device(owners: list[str]) -> list[str]:
    """Return the owners other than compute."""
    return [name for name in owners if name != "compute"]


def gpu(rows: list[made.Row], launches: list[made.Row], **more: Any) -> dict[str, list[made.Row]]:
    return {"activities": rows, "launches": launches, "kernels": [{"name": "k"}], "steps": [step(0, 0, 100)], **more}


def causes(tables: dict[str, list[made.Row]]) -> dict[str, int]:
    parts = breakdown.compute(made.run({0: tables})).parts
    return {str(cause): int(ns) for cause, ns in zip(CAUSES, parts.idle[0], strict=True) if ns}


def test_a_gap_is_host_idle_if_the_work_after_it_was_launched_within_it() -> None:
    rows = [work("compute", 0, 10), work("compute", 40, 60, launch_event=7), work("compute", 70, 100, launch_event=8)]
    launches = [{"event": 8, "start_ns": 50, "dur_ns": 2}, {"event": 7, "start_ns": 35, "dur_ns": 2}]
    # 10 to 40: the queue was empty. 60 to 70: work was queued, but something else delayed it.
    assert causes(gpu(rows, launches)) == {"host": 30, "other": 10}


def test_idle_time_distinguishes_late_input_blocking_calls_and_slow_launches() -> None:
    rows = [work("compute", 0, 10), work("compute", 60, 100, launch_event=7)]
    launches = [
        {"event": 7, "start_ns": 55, "dur_ns": 2},
        {"event": 3, "start_ns": 5, "dur_ns": 10, "blocking": True, "name": "cudaStreamSynchronize"},
    ]
    loading = [{"name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "start_ns": 13, "dur_ns": 20}]
    idle_ns_of_cause = causes(gpu(rows, launches, annotations=loading))
    assert idle_ns_of_cause == {"sync": 3, "input": 20, "host": 27}


def test_idle_time_without_host_events_has_no_cause_and_is_reported() -> None:
    tables = gpu([work("compute", 0, 10), work("compute", 60, 100, launch_event=7)], [])
    assert causes(tables) == {"other": 50}
    codes = [row.code for row in breakdown.compute(made.run({0: tables})).notes]
    assert codes == ["idle_cause_unknown"]


def test_on_a_cpu_the_host_is_the_device() -> None:
    tables = {
        "activities": [work("compute", 0, 10), work("compute", 60, 100)],
        "ops": [
            {"name": "aten::linear", "start_ns": 0, "dur_ns": 20},
            {"name": "c10d::barrier", "start_ns": 30, "dur_ns": 5},
        ],
        "annotations": [
            {"name": "ProfilerStep#0", "start_ns": 0, "dur_ns": 100},
            {"name": "train::input", "start_ns": 40, "dur_ns": 10},
        ],
        "steps": [step(0, 0, 100)],
    }  # fmt: skip
    assert causes(tables) == {"host": 10, "sync": 5, "input": 10, "other": 25}


def pipeline(sent: int) -> dict[int, dict[str, list[made.Row]]]:
    """Rank 1 posts a receive at 10; rank 0 sends at `sent`; both end at 50."""
    side = {"axis": "pp", "part": 0}
    return {
        0: {
            "activities": [work("compute", 0, sent), work("communication", sent, 50, "pp", collective=0)],
            "collectives": [part("send", sent, 50, peer=1, **side)],
            "steps": [step(0, 0, 60)],
        },
        1: {
            "activities": [work("communication", 10, 50, "pp", collective=0), work("compute", 50, 60)],
            "collectives": [part("recv", 10, 50, peer=0, **side)],
            "steps": [step(0, 0, 60)],
        },
    }


def test_a_receive_whose_peer_has_not_sent_is_a_bubble() -> None:
    parts = breakdown.compute(made.run(pipeline(sent=40))).parts
    late = parts.take(parts.rank == 1)
    assert late.exposed.tolist() == [[10]]
    assert dict(zip(map(str, CAUSES), late.idle[0].tolist(), strict=True))["bubble"] == 30
    assert late.comm.tolist() == [[10]]


def test_a_receive_whose_peer_was_not_read_stays_communication() -> None:
    result = breakdown.compute(made.run({1: pipeline(sent=40)[1]}))
    assert result.parts.exposed.tolist() == [[40]]
    assert [(row.code, row.count) for row in result.notes] == [("bubble_in_pp", 1)]
    assert breakdown.compute(made.run(pipeline(sent=40))).notes == ()


def test_parts_add_up_to_the_step_on_every_level() -> None:
    tables = made.run(pipeline(sent=30))
    result, times = breakdown.compute(tables), step_time.compute(tables)
    step_ns = [v.value for v in times.values() if v.metric.id == "step_time" and not v.dims]
    assert sum(result.mean_ns().values()) == step_ns[0] == 60
    assert sum(breakdown.compute(tables, Selection(ranks=(1,))).mean_ns().values()) == 60
    assert list(result.mean_ns())[:3] == ["compute", "comm:pp", "memcpy"]
    assert breakdown.compute(tables, Selection(ranks=(9,))).mean_ns() == {}


def test_values_cover_cells_ranks_and_the_whole_run() -> None:
    result = breakdown.compute(made.run(pipeline(sent=40)))
    dims = {tuple(sorted(v.dims)) for v in result.values() if v.metric is breakdown.EXPOSED_COMM_TIME}
    assert dims == {
        (), ("rank",), ("rank", "step"), ("axis",), ("axis", "rank"), ("axis", "rank", "step"),
    }  # fmt: skip
    declared = {m.id: set(m.dims) for m in breakdown.METRICS}
    assert all(set(v.dims) <= declared[v.metric.id] for v in result.values())
    table = result.to_pandas()
    assert table["exposed_pp_ns"].tolist() == [10, 10]
    assert (table.filter(like="_ns").drop(columns=["step_ns", "contended_ns"]).sum(axis=1) == table["step_ns"]).all()


def test_a_selection_limits_ranks_and_steps() -> None:
    rows = {"activities": [work("compute", 0, 100)], "steps": [step(3, 0, 40), step(4, 40, 70), step(5, 70, 100)]}
    tables = made.run({0: rows, 1: rows})
    parts = breakdown.compute(tables, Selection(ranks=(1,), first_step=4, last_step=4)).parts
    assert (parts.rank.tolist(), parts.step.tolist(), parts.compute.tolist()) == ([1], [4], [30])


def test_contention_and_unknown_axes_are_noted() -> None:
    rows = [work("communication", 0, 50, "dp"), work("communication", 20, 70, "unknown")]
    result = breakdown.compute(made.run({0: {"activities": rows, "steps": [step(0, 0, 100)]}}))
    assert result.parts.any_contended.tolist() == [30]
    assert result.parts.contended.tolist() == [[30, 0]]
    assert result.parts.exposed.tolist() == [[20, 50]]
    assert [row.code for row in result.notes] == ["axes_contend", "axis_unknown"]
    assert np.isclose(sum(result.mean_ns().values()), 100)


def test_a_send_kernel_that_waits_for_its_receiver_is_exposed_waiting() -> None:
    tables = {
        0: {
            "activities": [work("compute", 0, 20), work("communication", 20, 90, "pp", collective=0)],
            "collectives": [part("send", 20, 90, peer=1, axis="pp", part=0)],
        },
        1: {
            "activities": [work("compute", 0, 60), work("communication", 60, 90, "pp", collective=0)],
            "collectives": [part("recv", 60, 90, peer=0, axis="pp", part=0)],
        },
    }
    result = breakdown.compute(made.run({rank: rows | {"steps": [step(0, 0, 90)]} for rank, rows in tables.items()}))
    assert result.parts.exposed[:, 0].tolist() == [70, 30]
    # The send lasts 70 ns and waits 40 ns of them for its receiver.
    details = [row.detail for row in result.notes if row.code == "sends_wait"]
    assert len(details) == 1
    assert details[0].startswith("57.1% of pipeline sends")
