from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from usp_prof.cli import app
from usp_prof.extras.synth.declaration import (
    Clocks,
    Declaration,
    Fault,
    FaultKind,
    Mesh,
    Network,
    Shape,
    Speed,
    Style,
    Work,
    with_events,
)
from usp_prof.extras.synth.history import WATCHDOG
from usp_prof.extras.synth.mesh import START_NS, clocks
from usp_prof.extras.synth.simulation import Simulation, ground_truth
from usp_prof.extras.synth.write import write
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule, schedule_by_name
from usp_prof.schedule import Shape as PipelineShape

if TYPE_CHECKING:
    from pathlib import Path

QUIET = Network(noise=0.0, end_jitter_ns=0)


def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def nanoseconds(text: float) -> int:
    return round(text * 1000)


@pytest.mark.parametrize("style", list(Style))
def test_the_same_declaration_gives_the_same_bytes(tmp_path: Path, style: Style) -> None:
    run = Declaration(style=style, mesh=Mesh(dp=2, tp=2, pp=2, cp=2, ep=2), work=Work(steps=2), seed=3)
    for first_file, second_file in zip(write(run, tmp_path / "a"), write(run, tmp_path / "b"), strict=True):
        assert first_file.read_bytes() == second_file.read_bytes()


@pytest.mark.parametrize("style", list(Style))
def test_every_rank_has_its_groups_and_steps(tmp_path: Path, style: Style) -> None:
    files = write(Declaration(style=style, mesh=Mesh(dp=2, tp=2, pp=2)), tmp_path)
    assert len(files) == 8
    for rank, path in enumerate(files):
        data = read(path)
        assert data["distributedInfo"]["rank"] == rank
        described = {group["pg_desc"]: group["ranks"] for group in data["distributedInfo"]["pg_config"]}
        assert set(described) == {"default_pg", "mesh_pp", "mesh_dp", "mesh_tp"}
        assert all(rank in ranks for ranks in described.values())
        names = Counter(event["name"] for event in data["traceEvents"])
        assert [names[f"ProfilerStep#{step}"] for step in (10, 11, 12)] == [1, 1, 1]


def test_kernels_are_linked_to_their_launches_and_ops(tmp_path: Path) -> None:
    data = read(write(Declaration(mesh=Mesh(tp=2)), tmp_path)[0])
    by: dict[str, dict[int, Any]] = {"kernel": {}, "cuda_runtime": {}, "cpu_op": {}}
    for event in data["traceEvents"]:
        if event.get("cat") in by and event["args"].get("External id"):
            by[event["cat"]].setdefault(event["args"]["External id"], event)
    assert len(by["kernel"]) > 100
    for number, kernel in by["kernel"].items():
        launch, op = by["cuda_runtime"][number], by["cpu_op"][number]
        assert kernel["args"]["correlation"] == launch["args"]["correlation"]
        assert op["ts"] <= launch["ts"] <= launch["ts"] + launch["dur"] <= op["ts"] + op["dur"]
        assert kernel["ts"] > launch["ts"]
    ours = [kernel for kernel in by["kernel"].values() if kernel["name"].startswith("ncclDevKernel_AllReduce")]
    assert {kernel["args"]["Process Group Description"] for kernel in ours} == {"mesh_tp"}
    assert [kernel["args"]["Seq"] for kernel in ours] == list(range(len(ours)))


def test_kernels_on_one_stream_never_overlap(tmp_path: Path) -> None:
    for path in write(Declaration(mesh=Mesh(dp=2, tp=2, pp=2), seed=5), tmp_path):
        streams: dict[int, list[tuple[int, int]]] = {}
        for event in read(path)["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy"):
                begin = nanoseconds(event["ts"])
                streams.setdefault(event["tid"], []).append((begin, begin + nanoseconds(event["dur"])))
        for ranges in streams.values():
            ranges.sort()
            assert all(earlier[1] <= later[0] for earlier, later in pairwise(ranges))


def test_clocks_show_offset_and_drift() -> None:
    run = Declaration(mesh=Mesh(dp=4), clocks=Clocks(ranks_per_host=2, offset_ns=(0, 5_000_000), drift_ppm=(0.0, 50.0)))
    first, *_, last = clocks(run)
    assert int(first.local(np.array(10**9))) == START_NS + 10**9
    assert int(last.local(np.array(10**9))) == START_NS + 10**9 + 5_000_000 + 50_000


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("interleaved-zb", 2)],
)
def test_a_pipeline_without_noise_has_the_textbook_bubble(schedule: str, stages: int) -> None:
    work = Work(schedule=schedule, virtual_stages=stages, micro_batches=8, steps=2)
    speed = Speed(noise=0.0, op_gap_ns=1, launch_latency_ns=1, input_ns=0)
    network = Network(noise=0.0, end_jitter_ns=0, latency_ns=0, bytes_per_second=1e18)
    run = Declaration(mesh=Mesh(pp=4), shape=Shape(layers=8), work=work, speed=speed, network=network)
    textbook = (schedule_by_name(schedule) or Schedule.GPIPE).traits.bubble(PipelineShape(4, 8, stages))
    assert ground_truth(Simulation(run)).bubble_fraction[11] == pytest.approx(textbook, abs=1e-4)


def test_a_slow_rank_lengthens_the_step_by_its_delay() -> None:
    fault = Fault(FaultKind.SLOW_RANK, 1, factor=1.5)
    work = Work(micro_batches=1, steps=4)
    speed = Speed(noise=0.0)
    truth = ground_truth(
        Simulation(Declaration(mesh=Mesh(dp=4), work=work, speed=speed, network=QUIET, faults=(fault,)))
    )
    (culprit,) = truth.culprits
    compute = 4 * (400_000 * 3) + 600_000
    assert (culprit.rank, culprit.cause) == (1, "slow_rank")
    assert culprit.cost_ns == pytest.approx(compute / 2, rel=0.1)


def test_a_late_input_shows_as_idle_on_its_rank_alone() -> None:
    fault = Fault(FaultKind.LATE_INPUT, 2, step=10, delay_ns=5_000_000)
    truth = ground_truth(Simulation(Declaration(mesh=Mesh(dp=4), faults=(fault,))))
    late = {part.rank: part.idle_ns["input"] for part in truth.steps if part.step == 11}
    assert set(late.values()) == {300_000}
    assert truth.culprits[0].cost_ns > 1_000_000
    gloo = ground_truth(Simulation(Declaration(style=Style.GLOO, mesh=Mesh(dp=4), faults=(fault,))))
    assert {p.rank: p.idle_ns["input"] for p in gloo.steps if p.step == 10}[2] == 5_300_000


@settings(max_examples=20, deadline=None)
@given(
    mesh=st.builds(Mesh, dp=st.sampled_from([1, 2]), tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4])),
    style=st.sampled_from(list(Style)),
    schedule=st.sampled_from(["GPipe", "1F1B"]),
    seed=st.integers(0, 2**31),
)
def test_the_parts_of_a_step_add_up(mesh: Mesh, style: Style, schedule: str, seed: int) -> None:
    work = Work(schedule=schedule, steps=2)
    for part in ground_truth(Simulation(Declaration(mesh=mesh, style=style, work=work, seed=seed))).steps:
        exposed = sum(part.exposed_comm_ns.values())
        total_ns = part.compute_ns + exposed + part.memcpy_ns + sum(part.idle_ns.values())
        assert total_ns == part.end_ns - part.start_ns


def test_an_order_that_deadlocks_is_refused() -> None:
    work = Work(micro_batches=1, order=("B0 F0", "F0 B0"))
    with pytest.raises(UsageError, match="deadlocks"):
        Simulation(Declaration(mesh=Mesh(pp=2), work=work))


@pytest.mark.parametrize(
    "data",
    [{"mesh": {"dq": 2}}, {"work": {"schedule": "1G1B"}}, {"work": {"order": ["X0"]}}, {"mesh": {"dp": 0}}],
)
def test_a_meaningless_declaration_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Simulation(Declaration.from_dict(data))


def test_a_declaration_is_read_back_unchanged() -> None:
    run = Declaration(
        mesh=Mesh(dp=2), shape=Shape(layers=8), clocks=Clocks(offset_ns=(0, 5)), faults=(Fault(FaultKind.GC_PAUSE, 1),)
    )
    assert Declaration.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_the_command_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["synth", str(tmp_path / "run"), "--mesh", "dp=2", "--steps", "2", "--fault", "slow_rank:rank=1,factor=1.5"]
    assert app.main(words) == 0
    assert "2 ranks" in capsys.readouterr().err
    truth = json.loads((tmp_path / "run" / "truth.json").read_text())
    assert truth["culprits"][0]["rank"] == 1
    again = ["synth", str(tmp_path / "again"), "--declaration", str(tmp_path / "run" / "truth.json"), "-q"]
    assert app.main(again) == 0
    assert (tmp_path / "again" / "truth.json").read_text() == (tmp_path / "run" / "truth.json").read_text()


@pytest.mark.parametrize(
    "words",
    [["--mesh", "dp:2"], ["--fault", "slow"], ["--fault", "slow_rank:rank=x"], ["--declaration", "nowhere.json"]],
)
def test_the_command_refuses_what_it_cannot_read(tmp_path: Path, words: list[str]) -> None:
    assert app.main(["synth", str(tmp_path), *words]) == 2


def test_the_number_of_events_can_be_requested(tmp_path: Path) -> None:
    files = write(with_events(Declaration(work=Work(steps=1)), 20_000), tmp_path)
    assert len(read(files[0])["traceEvents"]) == pytest.approx(20_000, rel=0.05)
    assert with_events(Declaration(), 10).speed.extra_kernels == 0


def test_sharded_parameters_are_gathered_before_each_layer() -> None:
    work = Work(zero_stage=3, micro_batches=2, steps=1)
    simulation = Simulation(Declaration(mesh=Mesh(dp=2), work=work))
    ops = Counter(part.call.op for part in simulation.logs[0].parts)
    assert ops == {"all_gather": 4 * 2 * 2, "reduce_scatter": 4}
    hidden = sum(part.hidden_comm_ns["dp"] for part in ground_truth(simulation).steps)
    plain = Simulation(Declaration(mesh=Mesh(dp=2), work=replace(work, overlap_dp=False)))
    assert hidden > 0
    assert sum(part.hidden_comm_ns["dp"] for part in ground_truth(plain).steps) == 0


def test_a_host_pause_between_launches_has_no_event() -> None:
    fault = Fault(FaultKind.HOST_PAUSE, 1, delay_ns=5_000_000, times=2)
    run = Declaration(mesh=Mesh(dp=2), work=Work(micro_batches=2, steps=3), faults=(fault,))
    paused, clean = (Simulation(simulated).logs[1] for simulated in (run, replace(run, faults=())))
    assert [end - begin for begin, end in paused.pauses] == [5_000_000] * 6
    assert [span.name for span in paused.spans] == [span.name for span in clean.spans]
    truth = ground_truth(Simulation(run))
    (culprit,) = truth.culprits
    step = np.mean([part.end_ns - part.start_ns for part in truth.steps if part.step > run.work.first_step])
    assert culprit.gain_fraction == pytest.approx(culprit.cost_ns / step, abs=0.05)
    with pytest.raises(UsageError, match="times of a fault are 1 to"):
        Simulation(replace(run, faults=(replace(fault, times=0),)))


def test_a_watchdog_thread_calls_and_sleeps() -> None:
    run = Declaration(mesh=Mesh(dp=2), speed=Speed(watchdog_ns=1_000_000))
    log = Simulation(run).logs[0]
    calls = [span for span in log.spans if span.name == "cudaEventQuery"]
    assert len(calls) == pytest.approx((log.steps[-1][2] - log.steps[0][1]) / 1_000_000, abs=1)
    assert {span.thread for span in calls} == {WATCHDOG}


def test_a_host_that_waits_after_each_action_is_never_ahead() -> None:
    run = Declaration(mesh=Mesh(dp=2), work=Work(micro_batches=2, host_waits=True))
    log = Simulation(run).logs[0]
    for block in log.blocks:
        assert (block.start_ns >= block.host_ns).all()
    actions = len(log.actions)
    assert len(log.syncs) == actions + run.work.steps  # one after each action, one for the loss
