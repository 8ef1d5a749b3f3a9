"""Metamorphic predictions: changes that do not affect the job change no gain by more than its stated error."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from corpus_sets import TRACES

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


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project")
def test_pauses_of_all_ranks_do_not_depend_on_a_launch_into_a_full_queue(benchmark: dict[str, Any]) -> None:
    """With this device clock, one launch of rank 0 waits for room in its queue; its step still has the same calls."""
    traces = benchmark["_read"](TRACES / "megatron-tp8-a100")
    changed = benchmark["_of_rank"](traces, 0, partial(benchmark["_shifted"], shift=-20))
    (first, *_), (then, *_) = (benchmark["predictions_of"](run).findings for run in (traces, changed))
    assert first[0] == then[0] == "host-pause"
    assert then[2] == pytest.approx(first[2], abs=0.01)
