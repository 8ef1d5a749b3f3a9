"""FLOP, MFU and efficiency of a recorded run, compared with counts by hand. On a CPU; see `test_gpu.py` for GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from trainer_counts import check_efficiency, check_mfu, check_products
from trainer_fleet import finish, forked, start

from trainer.configuration.load import load_shape
from usp_prof import open_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]


def test_a_recorded_run_has_the_hand_counted_flops_and_mfu(tmp_path: Path) -> None:
    options = "--device cpu --batch 8 --steps 4 --metrics json --profile --profile-skip 1 --profile-steps 2"
    process = start([*forked(1), "trainer/run.py", *options.split(), "--output", str(tmp_path / "run")])
    out, err = finish(process, 280)
    assert process.returncode == 0, err
    assert json.loads([line for line in out.splitlines() if line.startswith("{")][-1])["step"] == 3
    run, shape = open_run(tmp_path / "run", cache_dir=tmp_path / "cache"), load_shape("tiny")
    run.assume(device="H100 SXM")  # a CPU's peak, measured while other tests run, can be below what the products reach
    tokens = 8 * shape.sequence
    check_products(run, shape, tokens)
    check_mfu(run, shape, tokens, processes=1)
    check_efficiency(run)
