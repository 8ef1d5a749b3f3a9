"""Recorded pairs in `traces/`: the change is predicted from either run within the stated error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import usp_prof
from usp_prof.model.edit import parse_edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[2] / "traces"
PAIRS = [
    ("zero3-no-prefetch", "prefetch=on", "zero3-prefetch"),
    ("zero3-prefetch", "prefetch=off", "zero3-no-prefetch"),
    ("zero0", "zero=1", "zero1"),
    ("zero1", "zero=0", "zero0"),
    ("zero0", "zero=3", "zero3-prefetch"),
    ("zero3-prefetch", "zero=0", "zero0"),
    ("zero1", "zero=3", "zero3-prefetch"),
    ("zero3-prefetch", "zero=1", "zero1"),
    ("slow-rank", "rank_as_peers=2", "slow-rank-repaired"),
]


@pytest.mark.skipif(not (TRACES / "recorded-zero3-prefetch").is_dir(), reason="the recorded runs are not here")
@pytest.mark.parametrize(("before", "edit", "after"), PAIRS)
def test_a_recorded_change_is_predicted(before: str, edit: str, after: str, tmp_path: Path) -> None:
    before_tables, after_tables = (
        open_run(TRACES / f"recorded-{name}", cache_dir=tmp_path).tables for name in (before, after)
    )
    predicted = predict(before_tables, [parse_edit(edit)])
    measured = 1 - unedited(after_tables).mean_measured_ns / predicted.before_ns
    assert predicted.gain_fraction * measured > 0
    assert abs(predicted.gain_fraction - measured) <= predicted.error_fraction


@pytest.mark.skipif(not (TRACES / "recorded-zero0").is_dir(), reason="the recorded runs are not here")
def test_over_gloo_latency_may_scale_with_bandwidth(tmp_path: Path) -> None:
    """On shared cores, apparent latency is time that a slower link may also increase."""
    tables = open_run(TRACES / "recorded-zero0", cache_dir=tmp_path).tables
    likely, worst = (predict(tables, [parse_edit(f"{name}=0.1,axis=dp")]) for name in ("bandwidth", "comm_faster"))
    assert worst.gain_fraction < likely.gain_fraction < 0
    assert likely.gain_fraction - worst.gain_fraction <= likely.error_fraction + 1e-9


@pytest.mark.parametrize("name", sorted(folder.name for folder in TRACES.glob("recorded-*")))
def test_a_recorded_run_replays_to_its_measured_steps(name: str, tmp_path: Path) -> None:
    times = unedited(open_run(TRACES / name, cache_dir=tmp_path).tables)
    assert len(times.error) > 0
    assert np.median(times.error) <= 0.01
    assert times.error.max() <= 0.03


@pytest.mark.skipif(not (TRACES / "recorded-zero3-prefetch").is_dir(), reason="the recorded runs are not here")
def test_gathers_that_start_earlier_keep_their_duration(tmp_path: Path) -> None:
    run = usp_prof.open_run(TRACES / "recorded-zero3-no-prefetch", cache_dir=tmp_path)
    before, after = (shown_run.communication().df for shown_run in (run, run.whatif("prefetch=on")))
    gather_ns = [float(table[table["op"] == "all_gather"]["transfer_ns"].median()) for table in (before, after)]
    assert gather_ns[1] == pytest.approx(gather_ns[0], rel=0.5)
