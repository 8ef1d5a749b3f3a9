"""A data loader that takes as long as the device waits for a late rank does not wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from injection import true_gain
from made_training import Delay, Job

from usp_prof.model.edit import Edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


def test_a_loader_that_ends_with_the_device_in_two_steps_by_chance_does_not_wait_for_it(tmp_path: Path) -> None:
    """The peers are 2.9 ms ahead of the late rank, and load their input for 3 ms."""
    job = Job("sharded-tensors", 870_786)

    def made(delay: Delay | None, folder: Path) -> TableSet:
        job.simulate(delay, 951_301)
        job.write(folder)
        return open_run(folder, cache_dir=folder / "cache").tables

    usual, delayed = (
        made(None, tmp_path / "usual"),
        made(Delay("late_input", 0, 2_919, only_in=1), tmp_path / "delayed"),
    )
    truth = true_gain(unedited(usual), unedited(delayed))
    assert predict(delayed, [Edit("rank_as_peers", "0")]).gain_fraction == pytest.approx(truth, abs=0.01)
