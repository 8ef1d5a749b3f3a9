"""Delays propagated by the second simulator, in a GPU run and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from injection import true_gain
from second_injection import Delay, read_run, simulate, write_run
from second_recording import read_rank
from second_waits import add_waits

from usp_prof.model.edit import Edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

RUN = Path(__file__).parents[2] / "traces" / "gpu-nccl-zero3"
LEAST_COST = 0.1


@pytest.mark.slow
def test_a_delay_of_zero_gives_the_original_times(tmp_path: Path) -> None:
    run = read_run(RUN)
    new = simulate(run, Delay(1, {point.moment: 0 for point in run.ranks[1].points}))
    write_run(run, new, tmp_path)
    for rank in run.ranks.values():
        written = json.loads((tmp_path / f"rank{rank.rank}.json").read_text())["traceEvents"]
        assert len(new[rank.rank].end) > len(rank.stream_of)
        assert len(written) == len(rank.events)
        for before, after in zip(rank.events, written, strict=True):
            assert before.keys() == after.keys()
            assert abs(before.get("ts", 0) - after.get("ts", 0)) < 0.001
            assert abs(before.get("dur", 0) - after.get("dur", 0)) < 0.001


@pytest.mark.slow
def test_the_repair_of_one_pause_is_predicted_within_its_error(tmp_path: Path) -> None:
    run = read_run(RUN)
    rank, steps = run.ranks[1], {}
    begin_ns, end_ns = rank.steps[0]
    ops = [
        point.moment
        for point in rank.points
        if begin_ns < point.when_ns < end_ns and rank.events[point.event].get("cat") == "cpu_op" and not point.is_end
    ]
    # The host is half a step ahead of the device, so only a pause that is longer than this costs time.
    pause = Delay(1, {ops[len(ops) // 2]: end_ns - begin_ns})
    for name, delay in (("original", None), ("delayed", pause)):
        write_run(run, simulate(run, delay), tmp_path / name)
        tables = open_run(tmp_path / name, cache_dir=tmp_path / "cache").tables
        steps[name] = unedited(tables)
    truth = true_gain(steps["original"], steps["delayed"])
    repaired = predict(tables, [Edit("rank_as_peers", "1")])
    assert truth > LEAST_COST
    assert abs(repaired.gain_fraction - truth) <= repaired.error_fraction


def test_communication_does_not_wait_by_chance_for_work_without_a_launch(tmp_path: Path) -> None:
    send, add = "ncclDevKernel_SendRecv()", "add"
    launch, kernel = _kernel("gemm", 1, launch_us=10.0, start_us=40.0, length_us=5000.0)
    assert _waits(send, [kernel], tmp_path) == 0
    assert _waits(send, [launch, kernel], tmp_path) == 1
    assert _waits(add, [kernel], tmp_path) == 1


def _waits(name: str, earlier: list[dict[str, Any]], folder: Path) -> int:
    """Return how many kernels of other streams a kernel waits for that starts when an earlier one ends."""
    events = [*earlier, *_kernel(name, 2, launch_us=20.0, start_us=5041.0, length_us=10.0)]
    path = folder / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    rank = read_rank(path)
    add_waits(rank)
    return sum(map(len, rank.crossing.values()))


def _kernel(name: str, stream: int, *, launch_us: float, start_us: float, length_us: float) -> list[dict[str, Any]]:
    """Return a launch and its kernel; the stream's number is also the correlation."""
    launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 7, "tid": 7, "ts": launch_us, "dur": 5.0}
    kernel = {"name": name, "cat": "kernel", "pid": 0, "tid": stream, "ts": start_us, "dur": length_us}
    return [{"ph": "X", "args": {"correlation": stream, "stream": stream}, **event} for event in (launch, kernel)]
