"""Our own CI's check can fail: its policies on a run with a changed baseline or trace."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.gate.measured import Baseline, load, save

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

CI = Path(__file__).parents[2] / ".ci"
COUNTS, PACED = "policy.toml", "paced.toml"
WORK = {"steps": 12, "micro_batches": 4, "schedule": "1F1B"}


def _declared(seed: int, **other: object) -> Declaration:
    return Declaration.from_dict({"mesh": {"dp": 2, "pp": 2}, "seed": seed, "work": WORK, **other})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a baseline of four runs, and a fifth to be checked."""
    folder = tmp_path_factory.mktemp("ci")
    for seed in range(5):
        write(_declared(seed), folder / f"run{seed}")
    runs = [str(folder / f"run{seed}") for seed in range(4)]
    assert main(["baseline", "save", *runs, "-o", str(folder / "good.json"), *_cache(folder)]) == 0
    return folder


def _cache(folder: Path) -> list[str]:
    return ["--cache-dir", str(folder / "cache"), "-q"]


def _check(place: Path, run: Path, policy: str, baseline: Path) -> int:
    words = ["check", str(run), "--baseline", str(baseline), "--policy", str(CI / policy)]
    return main([*words, *_cache(place)])


def _tampered(place: Path, target: Path, metric: str, change: Callable[[float], float]) -> Path:
    runs = []
    for run in load(place / "good.json").runs:
        changed = [
            replace(one_series, samples=tuple(map(change, one_series.samples)))
            if one_series.metric == metric
            else one_series
            for one_series in run.series
        ]
        assert changed != list(run.series), metric
        runs.append(replace(run, series=tuple(changed)))
    save(Baseline(tuple(runs)), target)
    return target


@pytest.mark.parametrize("policy", [COUNTS, PACED])
def test_a_repeated_run_passes(place: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(place, place / "run4", policy, place / "good.json") == 0
    assert capsys.readouterr().out.startswith("pass: ")


@pytest.mark.parametrize(
    ("policy", "metric", "change"),
    [
        (COUNTS, "collective_calls", lambda value: value - 1),
        (COUNTS, "collective_bytes", lambda value: value * 0.9),
        (COUNTS, "trace_flop_ratio", lambda value: value * 0.9),
        (COUNTS, "bubble_textbook_fraction", lambda value: value - 0.1),
        (PACED, "step_time", lambda value: value * 0.6),
        (PACED, "bubble_fraction", lambda value: value - 0.15),
        (PACED, "bubble_ideal_fraction", lambda value: value - 0.15),
        (PACED, "exposed_comm_fraction", lambda value: value - 0.15),
        (PACED, "overlap_fraction", lambda value: value + 0.4),
        (PACED, "collective_calls", lambda value: value - 1),
    ],
)
def test_a_tampered_baseline_fails_and_names_the_metric(
    place: Path,
    tmp_path: Path,
    policy: str,
    metric: str,
    change: Callable[[float], float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    baseline = _tampered(place, tmp_path / "b.json", metric, change)
    assert _check(place, place / "run4", policy, baseline) == 1
    assert f"regressed: {metric}" in capsys.readouterr().out.splitlines()[0]


def test_a_slow_rank_fails(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(_declared(9, faults=[{"kind": "slow_rank", "rank": 1, "factor": 2}]), tmp_path / "slow")
    assert _check(place, tmp_path / "slow", PACED, place / "good.json") == 1
    assert "step_time" in capsys.readouterr().out.splitlines()[0]


def test_a_trace_that_lost_a_collective_fails(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted((place / "run4").iterdir()):
        zipped = path.name.endswith(".gz")
        data = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
        data = _without_one(data) if b"traceEvents" in data else data
        (tmp_path / path.name).write_bytes(gzip.compress(data) if zipped else data)
    assert _check(place, tmp_path, COUNTS, place / "good.json") == 1
    assert "regressed: collective_calls[axis=dp" in capsys.readouterr().out.splitlines()[0]


def _without_one(data: bytes) -> bytes:
    trace = json.loads(data)
    last = max(
        (event for event in trace["traceEvents"] if event.get("cat") == "kernel" and "AllReduce" in event["name"]),
        key=lambda event: float(event["ts"]),
    )
    trace["traceEvents"].remove(last)
    return json.dumps(trace).encode()


@pytest.mark.parametrize("name", ["baseline.json", "paced.json"])
def test_the_baselines_are_complete(name: str) -> None:
    runs = load(CI / name).runs
    assert all(not run.missing_ranks and not run.damage for run in runs)
    assert len(runs) >= (4 if name == "paced.json" else 1), "the spread between runs has to be measured"
