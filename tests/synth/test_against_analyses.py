"""Two ways to one figure: the simulation's own sweep, and reading the written traces and analysing them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import usp_prof
from usp_prof.analyses import breakdown
from usp_prof.synth.declaration import Clocks, Declaration, Fault, FaultKind, Mesh, Network, Shape, Style, Work
from usp_prof.synth.write import write

if TYPE_CHECKING:
    from pathlib import Path

SLOW = Fault(FaultKind.SLOW_RANK, 1, factor=1.4)
LATE = Fault(FaultKind.LATE_INPUT, 1, step=11, delay_ns=5_000_000)
SKEWED = Clocks(ranks_per_host=2, offset_ns=(0, 3_000_000))
# Times written with a skewed clock are exact; who sent when is known only as well as the clocks are aligned.
EXACT = Network(end_jitter_ns=0)
RUNS = {
    "dp-tp-pp": Declaration(mesh=Mesh(dp=2, tp=2, pp=2), work=Work(steps=2), faults=(SLOW,)),
    "cp-ep": Declaration(mesh=Mesh(dp=2, cp=2, ep=2), work=Work(steps=2, overlap_dp=False)),
    "gpipe": Declaration(mesh=Mesh(pp=4), work=Work(schedule="GPipe", steps=2), seed=4),
    "zbv": Declaration(
        mesh=Mesh(pp=2), shape=Shape(layers=8), work=Work(schedule="zbv", virtual_stages=2, micro_batches=6, steps=2)
    ),
    "late-input": Declaration(mesh=Mesh(dp=4), work=Work(steps=2), clocks=SKEWED, faults=(LATE,)),
    "skewed-pipeline": Declaration(mesh=Mesh(dp=2, pp=2), work=Work(steps=2), clocks=SKEWED, network=EXACT, seed=8),
    "gloo": Declaration(style=Style.GLOO, mesh=Mesh(dp=2, pp=2), work=Work(steps=2), faults=(LATE,)),
}


@pytest.mark.parametrize("name", list(RUNS))
def test_the_breakdown_is_the_truth_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    write(RUNS[name], tmp_path / "run")
    run = usp_prof.open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    measured = breakdown.compute(run.tables).to_pandas().set_index(["rank", "step"])
    for part in json.loads((tmp_path / "run" / "truth.json").read_text())["steps"]:
        row = measured.loc[part["rank"], part["step"]]
        assert {key: int(row.get(key, 0)) for key in expected(part)} == expected(part), (part["rank"], part["step"])
        # Posting a gloo collective is the host's work here, a wait on others there: only their sum is agreed on.
        on_host = part["idle_ns"]["host"] + part["idle_ns"]["sync"]
        assert row["idle_host_ns"] + row["idle_sync_ns"] == on_host


def expected(part: dict[str, Any]) -> dict[str, int]:
    """Name the truth as the breakdown's table does."""
    return {
        "step_ns": part["end_ns"] - part["start_ns"],
        "compute_ns": part["compute_ns"],
        "memcpy_ns": part["memcpy_ns"],
        "idle_bubble_ns": part["idle_ns"]["bubble"],
        "idle_input_ns": part["idle_ns"]["input"],
        **{f"exposed_{axis}_ns": value for axis, value in part["exposed_comm_ns"].items()},
    }
