"""Two ways to each figure: the simulation's own sweep, and analyses of the written traces."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import usp_prof
from usp_prof.analyses import breakdown, pipeline, step_time
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
)
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from usp_prof.model.metric import Value

SLOW = Fault(FaultKind.SLOW_RANK, 1, factor=1.4)
LATE = Fault(FaultKind.LATE_INPUT, 1, step=11, delay_ns=5_000_000)
SKEWED = Clocks(ranks_per_host=2, offset_ns=(0, 3_000_000))
# Times written with a skewed clock are exact, but times of other ranks are only as exact as the clock alignment.
EXACT = Network(end_jitter_ns=0)
RUNS = {
    "dp-tp-pp": Declaration(mesh=Mesh(dp=2, tp=2, pp=2), work=Work(steps=2), faults=(SLOW,)),
    "cp-ep": Declaration(mesh=Mesh(dp=2, cp=2, ep=2), work=Work(steps=2, overlap_dp=False)),
    "gpipe": Declaration(mesh=Mesh(pp=4), work=Work(schedule="GPipe", steps=2), seed=4),
    "zero-1": Declaration(mesh=Mesh(dp=4), work=Work(zero_stage=1, micro_batches=2, steps=2)),
    "zero-3": Declaration(mesh=Mesh(dp=2, tp=2), work=Work(zero_stage=3, micro_batches=2, steps=2)),
    "zbv": Declaration(
        mesh=Mesh(pp=2), shape=Shape(layers=8), work=Work(schedule="zbv", virtual_stages=2, micro_batches=6, steps=2)
    ),
    "late-input": Declaration(mesh=Mesh(dp=4), work=Work(steps=2), clocks=SKEWED, faults=(LATE,)),
    "skewed-pipeline": Declaration(mesh=Mesh(dp=2, pp=2), work=Work(steps=2), clocks=SKEWED, network=EXACT, seed=8),
    "gloo": Declaration(style=Style.GLOO, mesh=Mesh(dp=2, pp=2), work=Work(steps=2), faults=(LATE,)),
}


@pytest.mark.parametrize("name", list(RUNS))
def test_the_breakdown_is_the_truth_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    compare(RUNS[name], tmp_path)


@settings(max_examples=5, phases=[Phase.generate])
@given(
    mesh=st.builds(Mesh, dp=st.sampled_from([1, 2]), cp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2])),
    work=st.builds(
        Work,
        schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
        zero_stage=st.sampled_from([0, 1, 3]),
        overlap_dp=st.booleans(),
        micro_batches=st.sampled_from([2, 6]),
        steps=st.just(2),
    ),
    gap=st.sampled_from([2_000, 9_000, 60_000]),
    seed=st.integers(0, 2**31),
)
def test_every_declared_fault_is_found(mesh: Mesh, work: Work, gap: int, seed: int) -> None:
    run = Declaration(mesh=mesh, work=work, speed=Speed(op_gap_ns=gap), seed=seed)
    with TemporaryDirectory() as folder:
        compare(run, Path(folder))


def compare(run: Declaration, folder: Path) -> None:
    """Compare the breakdown, the job's steps and the bubble with the ground truth."""
    write(run, folder / "run")
    opened = usp_prof.open_run(folder / "run", cache_dir=folder / "cache")
    truth = json.loads((folder / "run" / "truth.json").read_text())
    measured = breakdown.compute(opened.tables).to_pandas().set_index(["rank", "step"])
    for part in truth["steps"]:
        row = measured.loc[part["rank"], part["step"]]
        assert {key: int(row.get(key, 0)) for key in expected(part)} == expected(part), (part["rank"], part["step"])
        # Posting a gloo collective is host work here but waiting in the analysis; a launch in progress when a gap
        # starts is host work here but `other` there. Only the sums are equal.
        on_host = part["idle_ns"]["host"] + part["idle_ns"]["sync"]
        assert row["idle_host_ns"] + row["idle_sync_ns"] + row["idle_other_ns"] == on_host
    # Figures across ranks are as exact as the clock alignment.
    job = {step.step: step.length_ns for step in step_time.compute(opened.tables).job}
    assert job == pytest.approx({int(step): length for step, length in truth["step_time_ns"].items()}, abs=20_000)
    bubble = {v.dims["step"]: v.value for v in pipeline.compute(opened.tables).values() if is_bubble_of_step(v)}
    if run.mesh.pp > 1:
        assert bubble == pytest.approx({int(step): part for step, part in truth["bubble_fraction"].items()}, abs=2e-3)


def is_bubble_of_step(value: Value) -> bool:
    """Return the bubble fractions of the job per step."""
    return value.metric.id == "bubble_fraction" and set(value.dims) == {"step"}


def expected(part: dict[str, Any]) -> dict[str, int]:
    """Rename the ground truth like the columns of the breakdown."""
    return {
        "step_ns": part["end_ns"] - part["start_ns"],
        "compute_ns": part["compute_ns"],
        "memcpy_ns": part["memcpy_ns"],
        "idle_bubble_ns": part["idle_ns"]["bubble"],
        "idle_input_ns": part["idle_ns"]["input"],
        **{f"exposed_{axis}_ns": value for axis, value in part["exposed_comm_ns"].items()},
    }
