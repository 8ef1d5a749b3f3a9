"""Replay error on the unedited real runs, for each step of each rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from usp_prof.replay.build import graph_of
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]


SETS = ("megatron-tp2-v100", "megatron-tp8-a100", "param-dlrm-8r", "torchrec-4r-two-runs", "torchrec-4r-v100")
RUNS = (*sorted(f"gloo/{folder.name}" for folder in TRACES.glob("gloo/*") if folder.is_dir()), *SETS)


@pytest.mark.parametrize("name", RUNS)
def test_the_replay_of_real_runs_matches_their_steps(name: str, tmp_path: Path) -> None:
    tables = open_run(TRACES / name, cache_dir=tmp_path).tables
    times = unedited(tables)
    assert len(times.rank) > 0
    assert np.median(times.error) <= 0.01
    assert times.error.max() <= 0.03
    assert graph_of(tables).tied.any()
