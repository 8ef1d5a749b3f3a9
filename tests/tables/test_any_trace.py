"""Properties that hold for every trace, whatever its contents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import Trace, table_set

pytestmark = pytest.mark.slow

Times = st.tuples(st.integers(0, 5_000), st.integers(0, 800))
NAMES = [
    "aten::mm",
    "gemm",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "ncclDevKernel_SendRecv(x)",
    "record_param_comms",
    "gloo:all_reduce",
    "gloo:send",
    "c10d::allreduce_",
    "nccl:all_gather",
    "ProfilerStep#4",
    "Optimizer.step#A.step",
    "pace::fwd",
    "step",
    "pp::F stage=0 mb=0",
    "FSDP::all_gather (x)",
    "",
]
CATEGORIES = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime", "cuda_driver", "cuda_sync",
              "gpu_user_annotation", "overhead", "python_function")  # fmt: skip
ARGUMENTS = ("correlation", "External id", "stream", "device", "Seq", "Group size", "In msg nelems", "bytes")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    trace = Trace(0, draw(st.sampled_from([1, 2, 4])), device=draw(st.sampled_from(["cuda", "cpu"])))
    if draw(st.booleans()):
        trace.group("0", list(range(trace.world)), "default_pg").group("1", [0], "mesh_tp")
    for _ in range(draw(st.integers(0, 25))):
        at, dur = draw(Times)
        keys = draw(st.lists(st.sampled_from(ARGUMENTS), max_size=4, unique=True))
        args = {key: draw(st.integers(-1, 9)) for key in keys}
        thread = draw(st.integers(1, 4))
        trace.event(draw(st.sampled_from(NAMES)), draw(st.sampled_from(CATEGORIES)), at, dur, tid=thread, args=args)
    return trace


EMPTY_AT_A_START = Trace(0, 1).event("gemm", "kernel", 1, 1, tid=1).event("gemm", "kernel", 1, 0, tid=1)


@settings(max_examples=60)
@given(traces())
@example(EMPTY_AT_A_START)
def test_every_event_of_the_device_is_in_the_tables_and_lanes_never_overlap(trace: Trace) -> None:
    tables = table_set(trace)
    events, kernels = tables.columns("events", 0), tables.columns("kernels", 0)
    work = events.matches("category", "kernel", "gpu_memcpy") & events.matches("phase", "X")
    assert sorted(kernels["event"].tolist()) == events["event"][work].tolist()
    activities = tables.columns("activities", 0)
    lanes = activities["lane"]
    for lane in set(lanes.tolist()):
        here = lanes == lane
        start, dur = activities["start_ns"][here], activities["dur_ns"][here]
        assert (np.diff(start) >= 0).all()
        assert (start[1:] >= (start + dur)[:-1]).all()


@settings(max_examples=60)
@given(traces())
def test_parts_and_activities_refer_to_each_other(trace: Trace) -> None:
    tables = table_set(trace)
    activities, parts = tables.columns("activities", 0), tables.columns("collectives", 0)
    tied = activities["collective"] >= 0
    part = activities["collective"][tied]
    assert parts["event"][part].tolist() == activities["event"][tied].tolist()
    assert parts["lane"][part].tolist() == activities["lane"][tied].tolist()
    assert parts["axis"][part].tolist() == activities["axis"][tied].tolist()
    assert set(activities["kind"][tied].tolist()) <= {"communication"}
    assert (activities.matches("kind", "communication") == tied).all()
    assert (parts["axis"] != "").all()


@settings(max_examples=60)
@given(traces())
def test_steps_follow_each_other(trace: Trace) -> None:
    steps = table_set(trace).columns("steps", 0)
    assert (steps["end_ns"] >= steps["start_ns"]).all()
    assert len(set(steps["step"].tolist())) == len(steps)
