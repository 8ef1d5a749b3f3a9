"""Does what a GPU does agree with the CPU, and does its trace say what it should? Runs where there is a GPU.

One process has NCCL; two share the GPU through gloo, which carries what a data- or tensor-parallel rank sends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from trainer_fleet import finish, start, torchrun

from usp_prof import open_run
from usp_prof.analyses import mfu

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.trainer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]
SIZES = "--layers 2 --batch 8 --steps 4 --metrics json"


def losses(processes: int, options: str) -> list[float]:
    process = start([*torchrun(processes), "trainer/run.py", *SIZES.split(), *options.split()])
    out, err = finish(process, 280)
    assert process.returncode == 0, err
    return [json.loads(line)["loss"] for line in out.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def on_cpu() -> list[float]:
    return losses(1, "--device cpu --dtype fp32")


@pytest.mark.parametrize(
    ("processes", "options", "within"),
    [
        (1, "--dtype fp32", 1e-3),
        (1, "--dtype fp32 --recompute full", 1e-3),
        (1, "--dtype fp32 --recompute selective --accumulate 2", 1e-3),
        (1, "--dtype fp32 --compile", 1e-3),
        (1, "--dtype bf16", 3e-2),
        (2, "--dtype fp32 --dp 2", 1e-3),
        (2, "--dtype fp32 --dp 2 --zero 1", 1e-3),
        (2, "--dtype fp32 --tp 2", 1e-3),
    ],
)
def test_a_gpu_learns_what_a_cpu_learns(processes: int, options: str, within: float, on_cpu: list[float]) -> None:
    assert losses(processes, f"--device cuda {options}") == pytest.approx(on_cpu, rel=within)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no 8-bit products here"
)
def test_eight_bits_learn_too(on_cpu: list[float]) -> None:
    assert losses(1, "--device cuda --dtype fp8") == pytest.approx(on_cpu, rel=0.1)


def test_a_gpu_trace_holds_kernels_with_their_ops(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    losses(1, f"--device cuda --dtype bf16 --profile --profile-skip 1 --profile-steps 2 --output {folder}")
    run = open_run(folder, cache_dir=tmp_path / "cache")
    kernels = run.tables.columns("kernels", 0)
    compute = kernels.matches("kind", "compute")
    assert compute.sum() > 50
    assert np.mean(kernels["op_event"][compute] >= 0) > 0.9
    whole = {value.metric.id: value.value for value in mfu.compute(run.tables).values() if not value.dims}
    assert 0 < whole["mfu"] < 1
