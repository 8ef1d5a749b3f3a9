from __future__ import annotations

import pytest
from tiny import BASE, Trace, table_set


def windows(trace: Trace) -> list[tuple[int, int, int]]:
    steps = table_set(trace).columns("steps", 0)
    return [(n, a - BASE, b - BASE) for n, a, b in zip(steps["step"], steps["start_ns"], steps["end_ns"], strict=True)]


def test_device_windows_are_contiguous_and_run_behind_the_marks() -> None:
    trace = Trace().step(3, 0, 1_000).step(4, 1_000, 1_000)
    trace.kernel("a", 5_000, 100, launch_at=10).kernel("b", 6_000, 100, launch_at=900)
    trace.kernel("c", 7_500, 100, launch_at=1_100).kernel("after the last step", 9_000, 100, launch_at=3_000)
    assert windows(trace) == [(3, 5_000, 7_500), (4, 7_500, 7_600)]
    kernels = table_set(trace).columns("kernels", 0)
    assert kernels["step"].tolist() == [3, 3, 4, -1]


def test_on_cpu_the_mark_is_the_window() -> None:
    assert windows(Trace(device="cpu").step(1, 100, 900).op("aten::mm", 200, 50)) == [(1, 100, 1_000)]


def test_a_mark_that_launched_nothing_is_no_step() -> None:
    trace = Trace().step(1, 0, 1_000).step(2, 1_000, 10).kernel("a", 2_000, 100, launch_at=10)
    assert windows(trace) == [(1, 2_000, 2_100)]
    health = table_set(trace).columns("health", 0)
    assert "steps_without_work" in health["code"].tolist()


def test_work_that_overtakes_does_not_make_windows_negative() -> None:
    trace = Trace().step(1, 0, 1_000).step(2, 1_000, 1_000)
    trace.kernel("a", 9_000, 100, launch_at=10).kernel("b", 5_000, 100, launch_at=1_100, stream=9)
    assert windows(trace) == [(1, 5_000, 5_000), (2, 5_000, 9_100)]


def test_marks_behind_which_no_launch_is_linked_are_the_windows_and_health_says_so() -> None:
    trace = Trace().step(1, 0, 9_000).kernel("orphan", 2_000, 100, correlation=77)
    assert windows(trace) == [(1, 0, 9_000)]
    assert "steps_by_host" in table_set(trace).columns("health", 0)["code"].tolist()


def test_of_two_marks_with_one_number_the_longer_counts() -> None:
    assert windows(Trace(device="cpu").step(1, 0, 50).step(1, 0, 900)) == [(1, 0, 900)]


@pytest.mark.parametrize("names", [("train_step 7", "train_step 8"), ("iteration=7", "iteration=8"), ("step", "step")])
def test_numbered_and_repeated_annotations_stand_for_steps(names: tuple[str, str]) -> None:
    trace = Trace(device="cpu").mark(names[0], 0, 100).mark(names[1], 100, 100)
    steps = table_set(trace).columns("steps", 0)
    assert steps["step"].tolist() == ([0, 1] if names == ("step", "step") else [7, 8])
    assert set(steps["source"].tolist()) == {"annotation"}


def test_annotations_that_overlap_are_no_steps() -> None:
    trace = Trace(device="cpu").mark("step", 0, 100).mark("step", 50, 100)
    assert table_set(trace).columns("steps", 0)["source"].tolist() == ["window"]


def test_without_other_marks_the_optimizer_ends_each_step() -> None:
    trace = Trace(device="cpu").op("aten::mm", 10, 5)
    for end in (100, 200):
        trace.mark("Optimizer.step#A.step", end - 20, 10).mark("Optimizer.step#B.step", end - 10, 10)
        trace.mark("Optimizer.step#Often.step", end - 40, 5).mark("Optimizer.step#Often.step", end - 30, 5)
    assert windows(trace) == [(0, 10, 100), (1, 100, 200)]
    single = Trace(device="cpu").mark("Optimizer.step#A.step", 80, 20).op("aten::mm", 10, 5)
    assert table_set(single).columns("steps", 0)["source"].tolist() == ["window"]


def test_nothing_at_all_has_no_step() -> None:
    assert windows(Trace().event("overhead", "overhead", 0, 5)) == []
