"""Recorded pairs in `traces/`: the fault is the first finding, with the gain of the recorded repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from usp_prof.findings import find
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[2] / "traces"
WITHIN = 0.06
"""Paced runs of four processes on two shared cores repeat within a few points of the step."""


@pytest.mark.parametrize(
    ("faulty", "repaired", "code"),
    [
        ("slow-rank", "slow-rank-repaired", "slow-rank"),
        ("ring-contiguous", "ring-zigzag", "uneven-sequence"),
    ],
)
def test_the_fault_is_the_first_finding_and_its_gain_matches_the_repair(
    faulty: str, repaired: str, code: str, tmp_path: Path
) -> None:
    runs = [open_run(TRACES / f"recorded-{name}", cache_dir=tmp_path) for name in (faulty, repaired)]
    before, after = (unedited(run.tables).mean_measured_ns for run in runs)
    first = find(runs[0].tables)[0]
    assert first.code == code
    assert first.gain_fraction == pytest.approx(1 - after / before, abs=max(WITHIN, first.error_fraction))


def test_exposed_gathers_are_found_together_with_their_slow_link(tmp_path: Path) -> None:
    runs = [open_run(TRACES / f"recorded-zero3-{name}", cache_dir=tmp_path) for name in ("no-prefetch", "prefetch")]
    before, after = (unedited(run.tables).mean_measured_ns for run in runs)
    findings = find(runs[0].tables)
    codes = {finding.code: finding for finding in findings}
    assert [finding.code for finding in findings[:2]] == ["slow-link", "exposed-gathers"], "25 Mb/s were injected"
    assert codes["exposed-gathers"].gain_fraction == pytest.approx(1 - after / before, abs=WITHIN)
    left = {finding.code: finding.gain_fraction for finding in find(runs[1].tables)}.get("exposed-gathers", 0.0)
    assert left < codes["exposed-gathers"].gain_fraction / 2, "the first gather of each pass stays"


def test_uneven_experts_are_found(tmp_path: Path) -> None:
    first = find(open_run(TRACES / "recorded-ep-imbalance", cache_dir=tmp_path).tables)[0]
    assert (first.code, first.where["rank"]) == ("uneven-experts", 0)
    assert first.gain_fraction > 0.3
