"""Traces recorded on a GPU, compared with counts by hand and times without a profiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trainer_counts import check_efficiency, check_mfu, check_products

from trainer.configuration.load import load_shape
from usp_prof import open_run
from usp_prof.analyses import kernels
from usp_prof.findings import find
from usp_prof.findings.engine import found_in
from usp_prof.replay.step_times import unedited
from usp_prof.whatif.recording_cost import recording_cost

if TYPE_CHECKING:
    from usp_prof.run import Run

TRACES = Path(__file__).parents[2] / "traces"
TOKENS = 4 * 2048
UNRECORDED_MS = {"bf16": 43, "compile": 39, "light": 45.4, "plain": 44.8}
"""A step of each, timed without a profiler."""
COUNTED_TFLOP = 18.34
"""FLOP of a step of the Llama loop by torch's FlopCounterMode, attention in full."""


def read(name: str, folder: Path) -> Run:
    return open_run(TRACES / f"gpu-{name}", cache_dir=folder)


@pytest.mark.parametrize("name", ["bf16", "compile"])
def test_flops_mfu_and_efficiency_equal_the_hand_count(name: str, tmp_path: Path) -> None:
    run, shape = read(name, tmp_path), load_shape("1b", layers=4, sequence=2048)
    check_mfu(run, shape, TOKENS, processes=1)
    check_products(run, shape, TOKENS)
    check_efficiency(run)


@pytest.mark.parametrize("name", UNRECORDED_MS)
def test_a_recorded_step_takes_as_long_as_an_unrecorded_one(name: str, tmp_path: Path) -> None:
    steps = read(name, tmp_path).tables.columns("steps", 0)
    assert np.mean(steps["end_ns"] - steps["start_ns"]) / 1e6 == pytest.approx(UNRECORDED_MS[name], rel=0.05)


def test_products_of_another_loop_equal_the_count_of_torch(tmp_path: Path) -> None:
    run = read("plain", tmp_path)
    work = kernels.compute(run.tables)
    products = sum(op.flop for op in work.ops if op.name in ("aten::mm", "aten::addmm", "aten::bmm")) / 2
    assert products / 1e12 == pytest.approx(COUNTED_TFLOP - attention_tflop(), rel=0.01)


def attention_tflop() -> float:
    """Count two products forward, five in backward, over the whole square, of 4 layers and 16 heads of 128."""
    return (2 + 5) * 2 * 4 * 4 * 16 * 2048**2 * 128 / 1e12


def test_gains_refer_to_unrecorded_steps(tmp_path: Path) -> None:
    """The true gain of a repair was timed without a profiler, which makes these steps up to a fifth longer."""
    unrecorded, gains, errors = {}, {}, {}
    for name in ("logged-each-step", "logged-rarely", "late-input"):
        run = read(name, tmp_path)
        assert run.tables.manifest is not None
        unrecorded[name] = run.tables.manifest.unrecorded_step_ns["0"]
        findings = find(run.tables)
        gains[name] = {finding.code: finding.gain_fraction for finding in findings}
        errors[name] = {finding.code: finding.error_fraction for finding in findings}
    without_waits = 1 - unrecorded["logged-rarely"] / unrecorded["logged-each-step"]
    # Reading the loss copies it to pageable memory, for which the host waits.
    assert gains["logged-each-step"]["blocking-copies"] == pytest.approx(
        without_waits, abs=errors["logged-each-step"]["blocking-copies"]
    )
    (saved,) = [
        finding.saved_ns for finding in find(read("late-input", tmp_path).tables) if finding.code == "late-input"
    ]
    assert saved == pytest.approx(gains["late-input"]["late-input"] * unrecorded["late-input"])
    in_time = 1 - unrecorded["logged-rarely"] / unrecorded["late-input"]
    assert gains["late-input"]["late-input"] == pytest.approx(in_time, abs=errors["late-input"]["late-input"])
    assert not gains["logged-rarely"]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("logged-each-step", (0.02, 0.06)),
        ("late-input", (0.25, 0.3)),  # the first of two complete steps includes the profiler's start
    ],
)
def test_health_reports_the_cost_of_recording(name: str, bounds: tuple[float, float], tmp_path: Path) -> None:
    run = read(name, tmp_path)
    cost = recording_cost(run.tables)
    assert cost.is_known
    assert bounds[0] < cost.ns / unedited(run.tables).mean_measured_ns < bounds[1]
    assert "recording_cost" in {row.code for row in found_in(run.tables).skipped}


def test_an_unknown_recording_cost_is_part_of_the_errors(tmp_path: Path) -> None:
    """The same late input without the recorder's step times: 14% may be 33%, and the error says so."""
    shutil.copytree(TRACES / "gpu-late-input", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    timed = manifest.pop("unrecorded_step_ns")["0"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    run = open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    assert not recording_cost(run.tables).is_known
    assert "recording_cost_unknown" in {row.code for row in found_in(run.tables).skipped}
    (late,) = [finding for finding in find(run.tables) if finding.code == "late-input"]
    without = read("logged-rarely", tmp_path).tables.manifest
    assert without is not None
    truth = 1 - without.unrecorded_step_ns["0"] / timed
    assert late.gain_fraction == pytest.approx(truth, abs=late.error_fraction)
    assert late.certain_gain_fraction > 0


NCCL = [("nccl-zero3", "dp", {"all_gather", "reduce_scatter"}), ("nccl-pp2", "pp", {"send", "recv"})]


@pytest.mark.parametrize(("name", "axis", "ops"), NCCL)
def test_nccl_traces_have_axes_and_operations(name: str, axis: str, ops: set[str], tmp_path: Path) -> None:
    run = read(name, tmp_path)
    for rank in (0, 1):
        calls = run.tables.columns("collectives", rank)
        of_axis = calls.matches("axis", axis)
        assert all((of_axis & calls.matches("op", op)).any() for op in ops)
    assert "odd_values" not in {row.code for row in run.health}
    assert run.tables.manifest is not None
    assert run.tables.manifest.processes_per_device == 2
