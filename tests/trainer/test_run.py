"""Trainer from the command line: traces, resuming, naming a lost rank, refusals."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_fleet import ROOT, finish, forked, process_of, start, torchrun

from usp_prof.contract import Manifest, parse_mark

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]  # some launch twice


def begin(launcher: list[str], options: str) -> subprocess.Popen[str]:
    return start([*launcher, "trainer/run.py", "--device", "cpu", "--metrics", "json", *options.split()])


def train(launcher: list[str], options: str) -> list[dict]:
    process = begin(launcher, options)
    out, err = finish(process, 280)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def trace(folder: Path, rank: int) -> dict:
    return json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))


def test_a_profiled_run_leaves_plain_traces_and_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fault = "--fault slow-stage:stage=1,factor=2"
    lines = train(
        torchrun(2), f"--pp 2 --schedule zbv --pace 2,2,2 --micro-batches 4 {fault} --profile --output {folder}"
    )
    assert [line["step"] for line in lines] == list(range(5))
    assert lines[-1]["mfu"] is None  # a paced run has none
    manifest = Manifest.from_dict(json.loads((folder / "run.json").read_text()))
    assert manifest.mesh["pp"] == 2
    assert manifest.stages == {"0": [0, 3], "1": [1, 2]}
    assert manifest.paced
    assert manifest.schedule == "zbv"
    assert [(fault["kind"], fault["ranks"]) for fault in manifest.faults] == [("slow_stage", [1])]
    for rank in (0, 1):
        events = trace(folder, rank)["traceEvents"]
        marks = [mark for event in events if (mark := parse_mark(event.get("name", ""))) is not None]
        done = {
            (mark.what, mark.values["stage"], mark.values["mb"])
            for mark in marks
            if mark.area == "pp" and "mb" in mark.values
        }
        for stage in manifest.stages[str(rank)]:
            assert {mb for kind, where, mb in done if kind == "F" and where == stage} == set(range(4))
        assert {"fwd", "dgrad", "wgrad"} <= {mark.what for mark in marks if mark.area == "pace"}


def test_a_slow_link_delays_each_message_on_its_way(tmp_path: Path) -> None:
    fault = "--fault slow-link:axis=dp,delay_ms=60"
    train(
        forked(2),
        f"--dp 2 --zero 3 {fault} --layers 2 --steps 3 --profile --profile-steps 1 --output {tmp_path / 'run'}",
    )
    events = trace(tmp_path / "run", 1)["traceEvents"]
    marks = [event for event in events if event.get("name") == "fault::slow_link"]
    messages = [event for event in events if event.get("args", {}).get("Process Group Description") == "mesh_dp"]
    assert len(marks) == len(messages) >= 6  # FSDP2 has a gather and a sum for each layer and for what is around them
    # A message that gloo's two threads start late has already waited in their queue.
    median_taken, median_before = (sorted(event["dur"] for event in kind)[len(kind) // 2] for kind in (messages, marks))
    assert median_taken >= 40_000
    assert median_before < median_taken / 2, "messages wait before they are posted"


def test_a_product_runs_between_sending_a_chunk_and_its_arrival(tmp_path: Path) -> None:
    layers, updates = 2, "--steps 3 --profile --profile-steps 1"
    train(forked(2), f"--tp 2 --tp-async --layers {layers} {updates} --output {tmp_path / 'run'}")
    events = [event for event in trace(tmp_path / "run", 0)["traceEvents"] if "dur" in event]
    begun = {
        name: sorted((event["ts"], event["tid"]) for event in events if event["name"].startswith(name))
        for name in ("tp::ring_send_recv", "tp::ring_wait", "aten::mm")
    }
    posted, awaited = begun["tp::ring_send_recv"], begun["tp::ring_wait"]
    # A layer has two blocks, each with a gather before and a sum behind it, and as many in backward; one hop each.
    assert len(posted) == len(awaited) == layers * 2 * 2 * 2
    for (left, thread), (arrived, _) in zip(posted, awaited, strict=True):
        assert any(left < at < arrived for at, where in begun["aten::mm"] if where == thread)


@pytest.mark.parametrize("zero", [1, 3])
def test_all_reduces_over_replicas_overlap_with_backward(tmp_path: Path, zero: int) -> None:
    layout = f"--dp 4 --dp-replicate 2 --zero {zero} --layers 4"
    train(forked(4), f"{layout} --steps 3 --profile --profile-steps 1 --output {tmp_path / 'run'}")
    events = [event for event in trace(tmp_path / "run", 0)["traceEvents"] if "dur" in event]
    (end,) = (event["ts"] + event["dur"] for event in events if event["name"] == "train::backward")
    posted = [event["ts"] for event in events if event["name"].startswith("dp::replica_all_reduce")]
    assert len(posted) >= 4
    assert sum(at > end for at in posted) == 1, "only that of the last bucket"


def test_the_documented_single_process_command_runs(tmp_path: Path) -> None:
    lines = train(torchrun(1), f"--profile --steps 4 --experts 4 --output {tmp_path / 'run'}")
    assert len(lines) == 4
    assert lines[0]["expert_load_max"] >= 1
    assert 0 < lines[-1]["mfu"] < 1
    assert trace(tmp_path / "run", 0)["traceEvents"]


def test_the_loss_falls_on_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 40)
    command = [sys.executable, "trainer/run.py", "--device", "cpu", "--metrics", "json", "--data", str(text)]
    size = ["--steps", "12", "--sequence", "32", "--batch", "4"]
    done = subprocess.run([*command, *size], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines[-1]["loss"] < lines[0]["loss"] - 1


@pytest.mark.parametrize("options", ["--dp 2 --zero 3 --experts 4", "--pp 2 --schedule interleaved"])
def test_resuming_continues_exactly(tmp_path: Path, options: str) -> None:
    options = f"{options} --steps 4 --checkpoint {tmp_path} --checkpoint-every 2"
    uninterrupted = train(forked(2), options)
    (tmp_path / "step-000004").rename(tmp_path / "aside")
    resumed = train(forked(2), f"{options} --resume")
    assert [line["step"] for line in resumed] == [2, 3]
    for before, after in zip(uninterrupted[2:], resumed, strict=True):
        assert (before["loss"], before["grad_norm"]) == (after["loss"], after["grad_norm"])


def training(process: subprocess.Popen[str], rank: int, step: int = 0) -> int:
    """Wait for a step, and return the process of a rank."""
    for line in process.stdout:
        if line.startswith("{") and json.loads(line)["step"] == step:
            break
    return process_of(process, rank)


def test_a_stalled_rank_is_named_within_the_timeout() -> None:
    process = begin(torchrun(2), "--dp 2 --steps 100000 --timeout 15")
    victim = training(process, 1)
    os.kill(victim, signal.SIGSTOP)  # its connections stay open
    printed = []
    for line in process.stderr:
        printed.append(line)
        if "gives up" in line:
            break
    with contextlib.suppress(ProcessLookupError):  # torchrun may have killed it
        os.kill(victim, signal.SIGKILL)
    finish(process, 150)
    assert printed[-1].startswith(f"error: rank 1 (pid {victim} on "), "".join(printed)


def test_a_lost_rank_is_named_and_leaves_no_half_trace(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begin(torchrun(2), f"--dp 2 --steps 100000 --profile --profile-skip 100 --timeout 30 --output {folder}")
    victim = training(process, 1)
    os.kill(victim, signal.SIGKILL)
    _, err = finish(process, 150)
    assert process.returncode != 0
    assert f"error: rank 1 (pid {victim} on " in err
    assert "rank 0 gives up" in err
    assert not list(folder.glob("*")) or {path.name for path in folder.iterdir()} <= {"run.json", "metrics.jsonl"}


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_ends_with_one_line_and_complete_traces(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "run"
    options = f"--dp {processes} --steps 100000 --profile --profile-skip 0 --profile-steps 90000 --output {folder}"
    process = begin(torchrun(processes), options)
    workers = [training(process, 0, step=4)] + [process_of(process, rank) for rank in range(1, processes)]
    for worker in workers:
        os.kill(worker, signal.SIGINT)  # as a terminal does
    _, err = finish(process, 150)
    assert process.returncode != 0
    ours = err.partition("torch.distributed.elastic")[0]  # torchrun prints its own page
    assert "rank 0 was stopped by Ctrl-C" in ours
    assert "KeyboardInterrupt" not in ours
    assert "is gone" not in err
    for rank in range(processes):
        assert trace(folder, rank)["traceEvents"]


def test_ranks_without_messages_still_name_the_lost_rank() -> None:
    process = start([*torchrun(3), str(Path(__file__).with_name("deaf_rank.py"))])
    _, err = finish(process, 150)
    assert process.returncode != 0
    assert "rank 0 gives up (stopped by SIGTERM)" in err
    assert "rank 2 gives up (stopped by SIGTERM)" in err
    ranks = re.findall(r"rank (\d) \(pid", err)
    assert ranks  # and only the lost one
    assert set(ranks) == {"1"}


def test_torchrun_output_of_a_refusal_ends_with_the_reason() -> None:
    process = begin(torchrun(2), "--dp 2 --lr nan")
    _, err = finish(process, 150)
    assert process.returncode != 0
    *_, error, hint, border = err.rstrip().splitlines()
    assert (error.strip(), hint.strip()) == ("error: --lr nan is not a number", "hint: --lr 0.003")
    assert set(border) == {"="}
    assert "To enable traceback" not in err


def test_impossible_options_are_refused_before_anything_starts() -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "4"}  # no peers and no address: no group could be joined
    command = [sys.executable, "trainer/run.py", "--tp", "3", "--pp", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: pp x cp x tp = 6 must divide the 4 processes\nhint: ")
