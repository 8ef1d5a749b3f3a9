"""Metamorphic predictions: changes that do not affect the job change no gain by more than its stated error."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = {
    "device clock -200 us", "kernels split", "sleeping thread", "host activity cut at the end", "files permuted",
    "timestamps in whole microseconds", "timestamps 0.25 us off",
}  # fmt: skip


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return runpy.run_path(str(ROOT / "benchmarks" / "metamorphic.py"))


@pytest.mark.slow
def test_predictions_do_not_change_under_equivalent_recordings(benchmark: dict[str, Any]) -> None:
    traces = benchmark["_read"](ROOT / "traces" / "gpu-nccl-zero3")
    before = benchmark["predictions_of"](traces)
    assert before.repairs
    tried = set()
    for change, changed, names, turned in benchmark["changes_of"](traces):
        if change in CHANGES - tried:
            tried.add(change)
            after = benchmark["predictions_of"](changed, names)
            case = benchmark["_compared"]("gpu-nccl-zero3", change, before, after, turned)
            assert not case.gain_beyond, case
            assert case.first_stays, case
            assert case.ideal_moved < 0.02, case
    assert tried == CHANGES
