"""Changes on all ranks of made jobs: the predicted gain is that of the simulated change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from changed_training import CHANGES, ChangedJob
from injection import true_gain

from usp_prof.model.edit import parse_edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


def made(job: ChangedJob, change: str, folder: Path) -> TableSet:
    """Simulate, write and read the job with a change."""
    job.change = change
    job.simulate(None, 7)
    job.write(folder)
    return open_run(folder, cache_dir=folder.with_suffix(".cache")).tables


@pytest.mark.parametrize(("layout", "seed"), [("sharded", 887_365), ("tensor-parallel", 574_018), ("pipeline", 3)])
def test_the_gain_of_a_change_is_that_of_the_simulation(layout: str, seed: int, tmp_path: Path) -> None:
    job = ChangedJob(layout, seed)
    usual = made(job, "", tmp_path / "usual")
    for number, change in enumerate(CHANGES):
        truth = true_gain(unedited(made(job, change, tmp_path / f"changed{number}")), unedited(usual))
        predicted = predict(usual, [parse_edit(change)])
        assert predicted.gain_fraction == pytest.approx(truth, abs=0.03), change
        assert predicted.gain_fraction == pytest.approx(truth, abs=predicted.error_fraction), change
