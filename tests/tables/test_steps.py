from __future__ import annotations

import pytest
from tiny import BASE, Trace, table_set


def windows(trace: Trace) -> list[tuple[int, int, int]]:
    steps = table_set(trace).columns("steps", 0)
    return [(n, a - BASE, b - BASE) for n, a, b in zip(steps["step"], steps["start_ns"], steps["end_ns"], strict=True)]


def test_device_steps_are_contiguous_and_lag_behind_the_marks() -> None:
    trace = Trace().step(3, 0, 1_000).step(4, 1_000, 1_000)
    trace.kernel("a", 5_000, 100, launch_at=10).kernel("b", 6_000, 100, launch_at=900)
    trace.kernel("c", 7_500, 100, launch_at=1_100).kernel("after the last step", 9_000, 100, launch_at=3_000)
    assert windows(trace) == [(3, 5_000, 7_500), (4, 7_500, 7_600)]
    kernels = table_set(trace).columns("kernels", 0)
    assert kernels["step"].tolist() == [3, 3, 4, -1]
    health = table_set(trace).columns("health", 0)
    assert dict(zip(health["code"], health["count"], strict=True))["work_outside_steps"] == 1


def test_on_cpu_the_mark_is_the_step() -> None:
    assert windows(Trace(device="cpu").step(1, 100, 900).op("aten::mm", 200, 50)) == [(1, 100, 1_000)]


def test_a_mark_without_launches_is_not_a_step() -> None:
    trace = Trace().step(1, 0, 1_000).step(2, 1_000, 10).kernel("a", 2_000, 100, launch_at=10)
    assert windows(trace) == [(1, 2_000, 2_100)]
    health = table_set(trace).columns("health", 0)
    assert "steps_without_work" in health["code"].tolist()


def test_work_that_overtakes_does_not_make_windows_negative() -> None:
    trace = Trace().step(1, 0, 1_000).step(2, 1_000, 1_000)
    trace.kernel("a", 9_000, 100, launch_at=10).kernel("b", 5_000, 100, launch_at=1_100, stream=9)
    assert windows(trace) == [(1, 5_000, 5_000), (2, 5_000, 9_100)]


def test_marks_without_linked_launches_are_the_steps_and_reported() -> None:
    trace = Trace().step(1, 0, 9_000).kernel("orphan", 2_000, 100, correlation=77)
    assert windows(trace) == [(1, 0, 9_000)]
    assert "steps_by_host" in table_set(trace).columns("health", 0)["code"].tolist()


def test_the_longer_of_two_marks_with_one_number_counts() -> None:
    assert windows(Trace(device="cpu").step(1, 0, 50).step(1, 0, 900)) == [(1, 0, 900)]


@pytest.mark.parametrize("duration", [-900, None])
def test_a_mark_of_unknown_length_is_not_a_step(duration: int | None) -> None:
    trace = Trace(device="cpu").step(1, 0, 900).step(2, 900, 900).step(3, 1800, 900)
    trace.events[-2]["dur"] = duration
    assert windows(trace) == [(1, 0, 900), (3, 1800, 2700)]


def iterations(number: int, *, first: int = 0, outer: str = "iteration", inner: str = "batch") -> Trace:
    """Build iterations of 1,000 ns with two numbered micro-batches each, numbered consecutively or per iteration."""
    trace = Trace(device="cpu")
    for place in range(number):
        trace.mark(f"{outer} {5 + place}", 1_000 * place, 1_000)
        for part in range(2):
            trace.mark(f"{inner} {first * place + part + 1}", 1_000 * place + 500 * part, 400)
    return trace


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("number", [1, 3])
def test_numbered_annotations_around_others_are_the_steps(number: int, first: int) -> None:
    expected = [(5 + place, 1_000 * place, 1_000 * (place + 1)) for place in range(number)]
    assert windows(iterations(number, first=first)) == expected


def test_micro_batches_of_an_iteration_cut_by_the_recording_are_not_steps() -> None:
    trace = iterations(3, first=2)
    del trace.events[0]
    assert [number for number, _, _ in windows(trace)] == [6, 7]


def test_a_mark_too_long_around_others_of_its_kind_does_not_swallow_them() -> None:
    trace = Trace(device="cpu").mark("step 1", 0, 9_000).mark("step 2", 1_000, 1_000).mark("step 3", 2_000, 1_000)
    assert [number for number, _, _ in windows(trace)] == [1, 2, 3]


@pytest.mark.parametrize("names", [("train_step 7", "train_step 8"), ("iteration=7", "iteration=8"), ("step", "step")])
def test_numbered_and_repeated_annotations_are_steps(names: tuple[str, str]) -> None:
    trace = Trace(device="cpu").mark(names[0], 0, 100).mark(names[1], 100, 100)
    steps = table_set(trace).columns("steps", 0)
    assert steps["step"].tolist() == ([0, 1] if names == ("step", "step") else [7, 8])
    assert set(steps["source"].tolist()) == {"annotation"}


def test_overlapping_annotations_are_not_steps() -> None:
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


def unmarked(steps: int, *, rank: int = 0, optimizer: str = "multi_tensor_apply_kernel<Adam>") -> Trace:
    """Make a rank whose kernels repeat in each step, without host marks."""
    trace, at = Trace(rank), 0
    for _ in range(steps):
        for name in ("embed", *("norm", "gemm", "act") * 3, "head", "loss", *("act_b", "gemm_b") * 3, optimizer):
            trace.kernel(name, at + 5_000, 80, launch_at=at)
            at += 100
        at += 300
    return trace


def sources(trace: Trace) -> set[str]:
    return set(table_set(trace).columns("steps", 0)["source"].tolist())


def test_repeating_kernels_are_steps_and_health_reports_it() -> None:
    trace = unmarked(3)
    size = 19 * 100 + 300
    assert windows(trace) == [
        (0, 5_000, 5_000 + size),
        (1, 5_000 + size, 5_000 + 2 * size),
        (2, 5_000 + 2 * size, 5_000 + 3 * size - 320),
    ]
    tables = table_set(trace)
    assert set(tables.columns("steps", 0)["source"].tolist()) == {"pattern"}
    assert "steps_inferred" in tables.columns("health", 0)["code"].tolist()


def test_a_recording_may_start_and_end_inside_a_step() -> None:
    trace = unmarked(5)
    trace.events = [
        event for event in trace.events if 1_000 <= event["ts"] - (event["cat"] == "kernel") * 5_000 < 9_500
    ]
    steps = table_set(trace).columns("steps", 0)
    size = 19 * 100 + 300
    assert (steps["start_ns"] - BASE).tolist() == [5_000 + size * n for n in (1, 2, 3)]


def test_on_cpu_repeating_host_ops_are_steps() -> None:
    trace, at = Trace(device="cpu"), 0
    for _ in range(3):
        for name in ("aten::embedding", *("aten::mm", "aten::relu") * 4, "aten::nll_loss", "aten::_fused_adam_"):
            trace.op(name, at, 90)
            at += 100
    assert windows(trace) == [(0, 0, 1_100), (1, 1_100, 2_200), (2, 2_200, 3_291)]
    assert sources(trace) == {"pattern"}


def test_an_annotation_that_starts_the_same_work_each_time_marks_steps() -> None:
    trace = unmarked(3)
    for number in range(3):
        trace.mark("DistributedDataParallel.forward", 2_200 * number - 10, 900)
        trace.mark("layer", 2_200 * number + 200, 50)
    steps = table_set(trace).columns("steps", 0)
    assert set(steps["source"].tolist()) == {"annotation"}
    assert (steps["host_start_ns"] - BASE).tolist() == [0, 2_200, 4_400]


def test_work_that_does_not_repeat_is_one_window() -> None:
    trace = Trace()
    for number in range(60):
        trace.kernel(f"kernel {number * number % 37}", 5_000 + number * 100, 80, launch_at=number * 100)
    assert sources(trace) == {"window"}
    assert sources(unmarked(1)) == {"window"}
    # Two equal halves of work without training are not steps.
    assert sources(unmarked(2, optimizer="last")) == {"window"}
    assert sources(unmarked(2)) == {"pattern"}


def test_layers_of_one_pass_are_not_steps() -> None:
    trace = Trace().kernel("embed", 5_000, 80, launch_at=0)
    for number in range(120):
        trace.kernel(
            ("norm", "qkv", "attn", "out", "up", "down")[number % 6], 5_100 + number * 100, 80, launch_at=number + 1
        )
    trace.kernel("head", 20_000, 80, launch_at=500).kernel("topk", 20_100, 80, launch_at=510)
    assert sources(trace) == {"window"}


def test_repeating_kernels_without_host_events_are_steps() -> None:
    trace = unmarked(3)
    launched = windows(trace)
    trace.events = [event for event in trace.events if event["cat"] == "kernel"]
    assert windows(trace) == launched
    assert sources(trace) == {"pattern"}


def test_the_recorders_marks_are_steps() -> None:
    trace = Trace(device="cpu").op("aten::mm", 10, 5)
    for end in (100, 200):
        trace.mark("train::fwd_bwd", end - 90, 60).mark("train::optimizer", end - 20, 20)
    assert windows(trace) == [(0, 10, 100), (1, 100, 200)]
    assert sources(trace) == {"mark"}


def test_an_empty_trace_has_no_steps() -> None:
    assert windows(Trace().event("overhead", "overhead", 0, 5)) == []


def test_steps_of_2021_are_found_among_the_ops() -> None:
    """With capitalized categories, a step may be an `Operator`. It contains work but is not an op."""
    trace = Trace()
    for number, at in ((1, 0), (2, 10_000)):
        trace.event(f"ProfilerStep#{number}", "Operator", at, 10_000)
        trace.event("aten::mm", "Operator", at + 100, 500)
        trace.event("cudaLaunchKernel", "Runtime", at + 200, 10, args={"correlation": number})
        trace.event("gemm", "Kernel", at + 1_000, 4_000, pid=0, tid=7, args={"correlation": number, "stream": 7})
    tables = table_set(trace)
    steps = tables.columns("steps", 0)
    assert steps["step"].tolist() == [1, 2]
    assert set(steps["source"]) == {"profiler_step"}
    assert tables.columns("kernels", 0)["step"].tolist() == [1, 2]
    assert set(tables.columns("ops", 0)["name"]) == {"aten::mm"}
