"""Batches: sends and receives that run as one kernel, which names none of them."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.run import open_run
from usp_prof.tables.calls import build
from usp_prof.whatif.predict import predict

PIPELINE = Path(__file__).parents[2] / "traces" / "gpu-nccl-pp2"

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
Message = tuple[str, int]


def _ring(rank: int, world: int) -> list[Message]:
    return [("send", (rank + 1) % world), ("recv", (rank - 1) % world)]


def _batch(trace: Trace, messages: list[Message], at: int, *, records: bool = True, kernel: str = KERNEL) -> None:
    """Post messages from time `at` on, and run them as one kernel, launched after the last post."""
    for number, (op, peer) in enumerate(messages):
        posted = at + 40 * number
        name = "c10d::send" if op == "send" else "c10d::recv_"
        trace.op(name, posted, 30, inputs=["", "", str(peer), "0"])
        if records:
            args = {"Collective name": op, "Process Group Name": "1", "Group size": trace.world, "In msg nelems": 8}
            args |= {"dtype": "Float", "Dst Rank" if op == "send" else "Src Rank": peer}
            trace.op("record_param_comms", posted + 5, 20, args=args)
    trace.kernel(kernel, at + 1_000, 500, stream=20, launch_at=at + 40 * len(messages))


def _run(world: int, *, records: bool = True, kernel: str = KERNEL) -> dict[int, Trace]:
    traces = {}
    for rank in range(world):
        trace = traces[rank] = Trace(rank, world).group("1", range(world)).step(1, 0, 20_000)
        for number in range(3):
            _batch(trace, _ring(rank, world), 1_000 + 5_000 * number, records=records, kernel=kernel)
    return traces


@pytest.mark.parametrize("kernel", [KERNEL, "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"])
def test_a_batch_has_a_part_for_each_message_and_one_activity(kernel: str) -> None:
    """RCCL runs all operations as one kernel."""
    tables = table_set(_run(3, kernel=kernel))
    parts = tables.columns("collectives", 1)
    assert parts["op"].tolist() == ["recv", "send"] * 3
    assert parts["peer"].tolist() == [0, 2] * 3
    assert set(parts["group"].tolist()) == {"1@0,1,2"}
    assert (parts["event"][0::2] == parts["event"][1::2]).all()
    communication = tables.columns("activities", 1)
    assert communication["collective"][communication["collective"] >= 0].tolist() == [0, 2, 4]


def test_c10d_ops_describe_a_batch_if_nothing_else_was_recorded() -> None:
    parts = table_set(_run(3, records=False)).columns("collectives", 1)
    assert parts["op"].tolist() == ["recv", "send"] * 3
    assert parts["peer"].tolist() == [0, 2] * 3


def test_each_message_is_a_call_of_its_sender_and_its_receiver() -> None:
    calls = build(table_set(_run(4))).to_pylist()
    assert len(calls) == 12
    assert all(call["matched_by"] == "p2p" and call["members"] == 2 and call["complete"] for call in calls)


def test_a_record_around_a_launch_is_not_part_of_a_later_batch() -> None:
    trace = Trace(0, 2).group("1", [0, 1]).step(1, 0, 20_000)
    trace.collective("send", 2_000, 100, group="1", launch_at=1_000, peer=1)
    trace.kernel(KERNEL, 4_000, 100, stream=20, launch_at=3_000)
    parts = table_set({0: trace}).columns("collectives", 0)
    assert parts["op"].tolist() == ["send", "send_recv"]
    assert parts["peer"].tolist() == [1, -1]


def test_posts_of_another_thread_are_not_part_of_a_batch() -> None:
    trace = Trace(0, 2).group("1", [0, 1]).step(1, 0, 20_000)
    trace.op("record_param_comms", 900, 20, thread=7, args={"Collective name": "send", "Dst Rank": 1})
    trace.kernel(KERNEL, 4_000, 100, stream=20, launch_at=3_000)
    assert table_set({0: trace}).columns("collectives", 0)["op"].tolist() == ["send_recv"]


def _in_batches(path: Path, folder: Path) -> None:
    """Write a recorded trace as if each send and receive had been a batch of one.

    Its records end before the launch, its kernel has no arguments, and no mark names it.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and "SendRecv" in event["name"]]
    correlations = {kernel["args"]["correlation"] for kernel in kernels}
    launches: dict[Any, list[float]] = {}
    for event in events:
        if event.get("cat") == "cuda_runtime" and event["args"].get("correlation") in correlations:
            launches.setdefault(event["tid"], []).append(event["ts"])
    for event in events:
        if event.get("name") in ("record_param_comms", "c10d::send", "c10d::recv_"):
            of_thread = sorted(launches.get(event["tid"], []))
            place = bisect_left(of_thread, event["ts"])
            if place < len(of_thread) and of_thread[place] < event["ts"] + event["dur"]:
                event["dur"] = (of_thread[place] - event["ts"]) / 2
    for kernel in kernels:
        kernel["args"] = {key: kernel["args"][key] for key in ("correlation", "stream", "device")}
    trace["traceEvents"] = [
        event for event in events if not str(event.get("name")).startswith(("pp::send", "pp::recv"))
    ]
    with gzip.open(folder / path.name, "wt", compresslevel=1, encoding="utf-8") as file:
        json.dump(trace, file)


def test_a_recorded_pipeline_is_the_same_in_batches(tmp_path: Path) -> None:
    (batched := tmp_path / "batched").mkdir()
    for path in PIPELINE.glob("rank*.json.gz"):
        _in_batches(path, batched)
    (batched / "run.json").write_bytes((PIPELINE / "run.json").read_bytes())
    as_recorded, in_batches = open_run(PIPELINE, cache_dir=tmp_path / "a"), open_run(batched, cache_dir=tmp_path / "b")
    for rank in (0, 1):
        columns = ("op", "peer", "group", "axis", "in_bytes", "out_bytes", "start_ns")
        parts, expected = (
            in_batches.tables.columns("collectives", rank),
            as_recorded.tables.columns("collectives", rank),
        )
        assert {name: parts[name].tolist() for name in columns} == {name: expected[name].tolist() for name in columns}
    slower = [Edit("comm_faster", "0.25", (("axis", "pp"),))]
    gains = [predict(run.tables, slower).gain_fraction for run in (as_recorded, in_batches)]
    assert gains[1] == pytest.approx(gains[0], abs=0.002)
    assert gains[0] < 0


def test_a_message_of_a_batch_has_arrived_when_the_first_of_its_kernels_ends() -> None:
    traces = _run(4)
    for rank, trace in traces.items():  # rank 3 is late by 400, so the kernels that exchange with it end later
        for event in trace.events:
            if event["cat"] == "kernel":
                late, lasts = (400, 500) if rank == 3 else (0, 500 if rank == 1 else 900)
                event["ts"], event["dur"] = event["ts"] + late, lasts
    calls = build(table_set(traces)).to_pylist()
    assert {call["transfer_ns"] for call in calls} == {500}
