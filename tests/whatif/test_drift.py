"""Clock drift: the gain of an edit on the same run with correct and with drifting host clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import usp_prof
from usp_prof.extras.synth.declaration import Clocks, Declaration, Fault, FaultKind, Mesh, Work
from usp_prof.extras.synth.simulation import Simulation, ground_truth
from usp_prof.extras.synth.write import write
from usp_prof.findings import engine

if TYPE_CHECKING:
    from pathlib import Path

DRIFTING = Clocks(ranks_per_host=2, offset_ns=(0, 2_000_000), drift_ppm=(0.0, 40.0))
RUN = Declaration(
    mesh=Mesh(tp=2, pp=2), work=Work(micro_batches=4, steps=2), faults=(Fault(FaultKind.SLOW_RANK, 3, factor=1.4),)
)


def gain(run: Declaration, folder: Path) -> float:
    write(run, folder / "run")
    findings = engine.find(usp_prof.open_run(folder / "run", cache_dir=folder / "cache").tables)
    return next(finding.gain_fraction for finding in findings if finding.code == "slow-rank")


def test_drifting_clocks_do_not_change_a_gain(tmp_path: Path) -> None:
    plain, drifting = gain(RUN, tmp_path / "a"), gain(replace(RUN, clocks=DRIFTING), tmp_path / "b")
    assert drifting == pytest.approx(plain, abs=2e-3)
    truth = ground_truth(Simulation(RUN))
    step = sum(part.end_ns - part.start_ns for part in truth.steps) / len(truth.steps)
    assert drifting == pytest.approx(truth.culprits[0].cost_ns / step, abs=0.01)
