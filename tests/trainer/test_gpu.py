"""Trainer on a GPU: agreement with the CPU, and contents of its trace. All of it in one command:

``pytest tests/trainer/test_gpu.py`` on a machine with a GPU. Two processes share a GPU through gloo, for collectives of
all ranks of a group, and through NCCL, for everything; with several GPUs each process has its own. `test_paper_gpu.py`
covers the rest, as far as possible without a device.
"""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from trainer_counts import check_efficiency, check_mfu, check_products
from trainer_fleet import finish, process_of, start, torchrun

from trainer.configuration.load import load_shape
from usp_prof import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.trainer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]
SIZES = "--layers 4 --batch 8 --steps 4 --metrics json"
EXACT, COARSE, EIGHT_BITS = 1e-3, 3e-2, 0.1
"""Relative differences of the loss from fp32 on the CPU: in fp32, bf16 and fp8."""
ALONE = (
    ("", EXACT),
    ("--recompute full", EXACT),
    ("--recompute selective --accumulate 2", EXACT),
    ("--compile", EXACT),
    ("--model small --sequence 64", EXACT),  # fewer heads of keys than of queries
    ("--accumulate 2", EXACT),
    ("--offload optimizer", EXACT),
    ("--offload optimizer --compile", EXACT),
    ("--offload optimizer --dtype fp8", EIGHT_BITS),
    ("--dtype bf16 --offload optimizer", COARSE),
    ("--experts 4", EXACT),  # one by one
    ("--experts 4 --dtype bf16", COARSE),  # in one kernel
    ("--dtype bf16", COARSE),
    ("--dtype bf16 --compile", COARSE),
    ("--dtype fp8", EIGHT_BITS),
    ("--dtype fp8 --recompute full", EIGHT_BITS),
    ("--fault slow-rank --fault blocking-sync --fault pause --fault late-input", EXACT),
)
SHARED = (
    "--dp 2",
    "--dp 2 --zero 1",
    "--dp 2 --zero 2",
    "--dp 2 --zero 3",
    "--tp 2",
    "--cp 2 --cp-method allgather",
    "--cp 2 --cp-method ulysses",
    "--dp 2 --ep 2 --experts 4",
)
APART = (
    *SHARED,
    "--cp 2",
    "--cp 2 --cp-layout contiguous --dtype bf16",
    *(f"--pp 2 --schedule {name}" for name in ("gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev")),
    "--pp 2 --schedule zbv --dtype bf16 --experts 4",
    "--tp 2 --tp-async",
)
FOUR = (
    "--dp 2 --tp 2 --zero 3",
    "--pp 2 --cp 2 --dtype bf16",
    "--dp 2 --pp 2 --zero 1 --schedule interleaved-zb",
    "--dp 2 --cp 2 --ep 4 --experts 4 --cp-method ulysses",
)


@cache
def losses(processes: int, options: str) -> list[float]:
    process = start([*torchrun(processes), "trainer/run.py", *SIZES.split(), *options.split()])
    out, err = finish(process, 280)
    assert process.returncode == 0, err
    return [json.loads(line)["loss"] for line in out.splitlines() if line.startswith("{")]


def check(processes: int, options: str, within: float) -> None:
    """Compare a run on GPUs with fp32 in one process on the CPU."""
    words = options.split()
    model = [word for name in ("--experts", "--model", "--sequence") if name in words for word in _pair(words, name)]
    expected = losses(1, " ".join(["--device cpu", *model]))
    assert losses(processes, f"--device cuda {options}") == pytest.approx(expected, rel=within)


def _pair(words: list[str], name: str) -> list[str]:
    return words[words.index(name) : words.index(name) + 2]


@pytest.mark.parametrize(("options", "within"), ALONE)
def test_parity_of_one_process_on_a_gpu(options: str, within: float) -> None:
    if within == EIGHT_BITS and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no 8-bit products here")
    check(1, options, within)


@pytest.mark.parametrize("options", SHARED)
def test_parity_of_two_processes_on_one_gpu(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    losses.cache_clear()
    check(2, f"{options} --backend gloo", EXACT)


def over_nccl(processes: int) -> str:
    """Return the option that NCCL requires to share a GPU."""
    return "" if processes <= GPUS else "--backend nccl"


@pytest.mark.parametrize(
    ("processes", "options"), [*((2, options) for options in APART), *((4, options) for options in FOUR)]
)
def test_parity_of_processes_over_nccl(processes: int, options: str) -> None:
    check(processes, f"{options} {over_nccl(processes)}", COARSE if "bf16" in options else EXACT)


def test_a_run_continues_on_a_gpu(tmp_path: Path) -> None:
    options = f"--device cuda --checkpoint {tmp_path} --checkpoint-every 2"
    uninterrupted = losses(1, options)
    (tmp_path / "step-000004").rename(tmp_path / "aside")
    assert losses(1, f"{options} --resume") == pytest.approx(uninterrupted[2:], rel=1e-5)


TRACED = ("--dtype bf16", "--dtype fp8", "--dtype bf16 --compile", "--dtype bf16 --offload optimizer", "")
"""Kinds of runs whose traces are compared with counts by hand."""


@pytest.mark.parametrize("options", TRACED)
def test_a_gpu_trace_has_the_hand_counted_flops_mfu_and_efficiency(options: str, tmp_path: Path) -> None:
    """Beyond warm-up, since a compiled layer compiles in the first steps."""
    if "fp8" in options and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no 8-bit products here")
    run = recorded(1, f"--model small {options}", tmp_path)
    kernels = run.tables.columns("kernels", 0)
    compute = kernels.matches("kind", "compute")
    assert compute.sum() > 50
    assert np.mean(kernels["op_event"][compute] >= 0) > 0.9
    if "--offload" in options:  # gradients come down and weights go up
        assert kernels.matches("kind", "memcpy").any()
    shape = load_shape("small", layers=4)
    tokens = 8 * shape.sequence
    check_mfu(run, shape, tokens, processes=1)
    check_efficiency(run)
    if "--compile" not in options:  # a compiled product may have another name
        check_products(run, shape, tokens)


def test_two_processes_on_one_gpu_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients use gloo. There is one device, and the manifest states how many processes share it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    losses.cache_clear()
    run = recorded(2, "--model small --dp 2 --dtype bf16 --backend gloo", tmp_path)
    assert run.tables.manifest is not None
    assert run.tables.manifest.processes_per_device == 2
    for rank in (0, 1):
        assert run.tables.columns("kernels", rank).matches("kind", "compute").sum() > 50
        assert run.tables.columns("collectives", rank).matches("axis", "dp").any()
    shape = load_shape("small", layers=4)
    check_mfu(run, shape, 8 * shape.sequence, processes=2)


def recorded(processes: int, options: str, folder: Path) -> Run:
    """Record two steps behind two of warm-up; the traces stay in the temporary folder of pytest."""
    window = f"--steps 5 --profile --profile-skip 2 --profile-steps 2 --output {folder / 'run'}"
    losses(processes, f"--device cuda {options} {window}")
    return open_run(folder / "run", cache_dir=folder / "cache")


def test_a_trace_over_nccl_has_axes_and_actions(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    losses(2, f"--device cuda --pp 2 {over_nccl(2)} --profile --profile-steps 2 --output {folder}")
    run = open_run(folder, cache_dir=tmp_path / "cache")
    for rank in (0, 1):
        actions = run.tables.columns("actions", rank)
        for kind in ("F", "B"):  # backward is launched by a thread of autograd
            of_kind = actions.matches("kind", kind)
            assert of_kind.any()
            assert (actions["device_end_ns"][of_kind] > actions["device_start_ns"][of_kind]).all()
        assert run.tables.columns("collectives", rank).matches("axis", "pp").any()


def test_a_lost_rank_is_named_on_gpus() -> None:
    options = f"--device cuda --dp 2 {over_nccl(2)} --steps 100000 --timeout 30 --metrics json"
    process = start([*torchrun(2), "trainer/run.py", *options.split()])
    next(line for line in process.stdout if line.startswith("{"))
    os.kill(process_of(process, 1), signal.SIGKILL)
    _, err = finish(process, 200)
    assert process.returncode != 0
    assert "is gone; rank 0 gives up" in err
