"""Delays of known size in real GPU runs: removing one restores the original run.

The simulator of `injection.py` shares no code with the replay. A repair's predicted gain is compared with the run
before the delay.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from corpus_sets import TRACES
from injection import DEVICE_CATEGORIES, Delay, read_run, simulate, true_gain, write_run
from tiers import thinned

from usp_prof.findings.search import search
from usp_prof.model.edit import Edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.attribution import ideal_step
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from injection import RankTrace

    from usp_prof.tables.table_set import TableSet

pytestmark = pytest.mark.slow

OWN = Path(__file__).parents[2] / "traces"
SHARED_SETS = ("torchrec-4r-v100", "torchrec-4r-sleeping-rank", "megatron-tp8-a100", "megatron-tp2-v100")
OWN_SETS = ("gpu-nccl-zero3",)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4)
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
WORTH_TESTING = 0.02
MEDIAN, WORST = 0.03, 0.08


def _paths(name: str) -> list[Path]:
    folder = OWN / name if name in OWN_SETS else TRACES / name
    if not folder.is_dir():
        pytest.skip("the corpus of real traces is not here")
    return sorted(path for path in folder.rglob("*.json*") if "_et_" not in path.name and path.name != "run.json")


def _tables(ranks: list[RankTrace], delay: Delay | None, folder: Path) -> TableSet:
    simulate(ranks, delay)
    write_run(ranks, folder / "run")
    return open_run(folder / "run", cache_dir=folder / "cache").tables


def _delays(rank: int, step_us: float) -> list[Delay]:
    timed = [Delay(kind, rank, share * step_us / (1 - share)) for kind in ("pause", "late_input") for share in SHARES]
    return [*timed, *(Delay(kind, rank, factor) for kind in ("slow_host", "slow_kernels") for factor in FACTORS)]


@pytest.mark.parametrize("name", [*OWN_SETS, *SHARED_SETS])
def test_repairing_an_injected_delay_gives_the_original_run_back(name: str, tmp_path: Path) -> None:
    ranks = read_run(_paths(name))
    original = unedited(_tables(ranks, None, tmp_path / "original"))
    slow = ranks[(len(ranks) - 1) // 2 if len(ranks) > 2 else 1].rank
    step_us, off = original.mean_measured_ns / 1e3, []
    full = [Delay(kind, slow, 0.3 * step_us / 0.7, fills_queue=True) for kind in ("pause", "late_sends")]
    for number, delay in enumerate([*thinned(_delays(slow, step_us), 4), *full]):
        tables = _tables(ranks, delay, tmp_path / str(number))
        truth = true_gain(original, unedited(tables))
        if truth >= WORTH_TESTING:
            off.append(abs(predict(tables, [Edit("rank_as_peers", str(slow))]).gain_fraction - truth))
    assert not off or np.median(off) <= MEDIAN
    assert max(off, default=0) <= WORST


@pytest.mark.parametrize("shift_us", [-200, -60, 20, 200])
@pytest.mark.parametrize("name", ["torchrec-4r-sleeping-rank", "gpu-nccl-zero3"])
def test_a_device_clock_offset_does_not_change_gains(name: str, shift_us: int, tmp_path: Path) -> None:
    paths = _paths(name)
    before = _figures(paths, tmp_path / "before", 0)
    after = _figures(paths, tmp_path / "after", shift_us)
    assert after == pytest.approx(before, abs=0.02)


def _figures(paths: list[Path], folder: Path, shift_us: int) -> dict[str, float]:
    """Return the gains of all repairs, the job slowdown and the first finding, with one device clock shifted."""
    folder.mkdir()
    for number, path in enumerate(paths):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        for event in trace["traceEvents"]:
            if number == 1 and event.get("cat") in (*DEVICE_CATEGORIES, "gpu_user_annotation") and "ts" in event:
                event["ts"] += shift_us
        with gzip.open(folder / f"rank{number}.json.gz", "wt", compresslevel=1, encoding="utf-8") as file:
            json.dump(trace, file)
    tables = open_run(folder, cache_dir=folder.with_suffix(f".cache{os.getpid()}")).tables
    figures = {
        f"rank {rank}": predict(tables, [Edit("rank_as_peers", str(rank))]).gain_fraction for rank in tables.ranks
    }
    first = search(tables).findings[0]
    ideal = ideal_step(tables)
    return figures | {"lost": 1 - 1 / (ideal.slowdown or 1.0), first.code: first.gain_fraction or 0.0}
