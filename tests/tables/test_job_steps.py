"""Steps of synthetic GPU runs with device activity only: determined once for the job."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from stripped import culprits, device_only, lengths, median_step, sources, totals, windows

from usp_prof.analyses import stragglers
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.run import Run, open_run

_FOLDER = TemporaryDirectory()


@cache
def made(text: str) -> Path:
    folder = Path(_FOLDER.name) / str(len(list(Path(_FOLDER.name).iterdir())))
    write(Declaration.from_dict(json.loads(text)), folder)
    return folder


def declared(mesh: dict[str, int], seed: int = 1, steps: int = 4, **more: Any) -> Path:
    work = {"steps": steps, "micro_batches": 2, **more.pop("work", {})}
    return made(json.dumps({"mesh": mesh, "seed": seed, "work": work, "shape": {"layers": 2}, **more}))


def full(path: Path) -> Run:
    return open_run(path, cache_dir=Path(_FOLDER.name) / "full-cache")


LAYOUTS = [
    ({"dp": 4}, 1), ({"dp": 2, "tp": 2}, 2), ({"pp": 2, "dp": 2}, 3), ({"dp": 2, "tp": 2, "pp": 2, "cp": 2}, 4),
    ({"dp": 4, "ep": 2}, 5), ({"dp": 2, "cp": 2}, 6),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "seed"), LAYOUTS)
def test_figures_equal_those_of_the_full_traces(mesh: dict[str, int], seed: int, tmp_path: Path) -> None:
    path = declared(mesh, seed)
    truth, cut = full(path), device_only(path, tmp_path / "run")
    assert sources(cut) == {"calls"}
    for rank in truth.ranks:
        assert len(windows(cut)[rank][0]) == len(windows(truth)[rank][0])
    assert median_step(cut.tables) == pytest.approx(median_step(truth.tables), rel=0.01)
    parts = totals(cut.tables)
    for part, ns in totals(truth.tables).items():
        assert parts[part] == pytest.approx(ns, rel=0.01, abs=2_000)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_straggler_is_that_of_the_full_traces(seed: int, tmp_path: Path) -> None:
    fault = {"kind": "slow_rank", "rank": 2, "factor": 1.5}
    path = declared({"dp": 4}, seed, faults=[fault])
    assert culprits(device_only(path, tmp_path / "run").tables)[:1] == culprits(full(path).tables)[:1] == [2]


def test_a_rank_that_lost_its_last_step_has_one_step_less(tmp_path: Path) -> None:
    path = declared({"dp": 4}, steps=5)
    _, starts, _ = windows(full(path))[1]
    first = min(event["ts"] for event in _events(path, 1) if event.get("cat") == "kernel")
    until = first + (starts[4] - starts[0]) / 1000

    def recorded(rank: int, event: dict[str, Any]) -> bool:
        return rank != 1 or event["ts"] < until - 1

    cut = device_only(path, tmp_path / "run", chosen=recorded)
    truth = lengths(full(path))
    for rank, own in lengths(cut).items():
        assert np.allclose(own, truth[rank][:4], rtol=0.02), rank


def test_recordings_that_start_at_different_calls_are_aligned(tmp_path: Path) -> None:
    path = declared({"dp": 2, "tp": 2}, steps=5)
    _, starts, ends = windows(full(path))[0]
    period = (ends[0] - starts[0]) / 1000
    first = {rank: min(e["ts"] for e in _events(path, rank) if e.get("cat") == "kernel") for rank in range(4)}

    def recorded(rank: int, event: dict[str, Any]) -> bool:
        return bool(event["ts"] >= first[rank] + 0.23 * rank * period)

    cut = device_only(path, tmp_path / "run", chosen=recorded)
    assert sources(cut) == {"calls"}
    numbers = {tuple(numbers) for numbers, _, _ in windows(cut).values()}
    assert len(numbers) == 1
    assert len(next(iter(numbers))) in {3, 4}
    assert median_step(cut.tables) == pytest.approx(median_step(full(path).tables), rel=0.01)


def _events(path: Path, rank: int) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(next(path.glob(f"rank{rank}.*")).read_bytes()))["traceEvents"]


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_micro_batches_are_not_steps(micro_batches: int, tmp_path: Path) -> None:
    path = declared({"dp": 2}, steps=3, work={"micro_batches": micro_batches})
    cut = device_only(path, tmp_path / "run")
    assert {len(numbers) for numbers, _, _ in windows(cut).values()} == {3}


@pytest.mark.parametrize("complete", [{0}, {3}, {0, 1, 2}])
def test_stripped_ranks_get_the_steps_of_full_ones(complete: set[int], tmp_path: Path) -> None:
    path = declared({"pp": 2, "dp": 2}, 3)
    truth, cut = full(path), device_only(path, tmp_path / "run", complete_ranks=complete)
    for rank in truth.ranks:
        assert windows(cut)[rank][0] == windows(truth)[rank][0]
        assert np.allclose(lengths(cut)[rank], lengths(truth)[rank], rtol=0.01)


def test_a_single_rank_is_cut_by_its_repeating_kernels(tmp_path: Path) -> None:
    path = declared({"dp": 1}, steps=4)
    truth, cut = full(path), device_only(path, tmp_path / "run")
    assert sources(cut) == {"pattern"}
    assert np.allclose(lengths(cut)[0], lengths(truth)[0], rtol=0.01)


def test_the_health_states_how_steps_were_cut_and_what_to_record(tmp_path: Path) -> None:
    cut = device_only(declared({"dp": 4}), tmp_path / "run")
    rows = {row.code: row for row in cut.health}
    assert "complete periods of the calls" in rows["steps_by_calls"].detail
    assert "profiler.step()" in rows["steps_by_calls"].detail
    assert not {"no_steps", "steps_inferred"} & set(rows)


def test_ranks_without_common_steps_are_not_compared(tmp_path: Path) -> None:
    """One rank recorded a step and a half, and the others hardly more, so there is no period."""
    path = declared({"dp": 4}, steps=2)
    _, starts, ends = windows(full(path))[0]
    period = (ends[0] - starts[0]) / 1000
    first = {rank: min(e["ts"] for e in _events(path, rank) if e.get("cat") == "kernel") for rank in range(4)}

    def recorded(rank: int, event: dict[str, Any]) -> bool:
        return bool(event["ts"] < first[rank] + (1.7 if rank else 0.6) * period)

    cut = device_only(path, tmp_path / "run", chosen=recorded)
    assert sources(cut) == {"window"}
    assert "profiler.step()" in cut.tables.incomparable
    assert "steps_not_comparable" in {row.code for row in cut.health}
    result = stragglers.compute(cut.tables)
    assert not result.culprits
    assert not result.values()
    assert result.notes[0].code == "ranks_not_compared"


def test_a_rank_without_shared_calls_has_no_steps_and_is_reported(tmp_path: Path) -> None:
    """Three ranks have common steps; the fourth recorded only kernels that are not communication."""
    path = declared({"dp": 4})

    def recorded(rank: int, event: dict[str, Any]) -> bool:
        return rank != 3 or "nccl" not in event.get("name", "").lower()

    cut = device_only(path, tmp_path / "run", chosen=recorded)
    (row,) = [row for row in cut.health if row.code == "steps_unknown"]
    assert row.detail.startswith("ranks 3 share no calls")
    assert row.count == 1
    assert len(cut.tables.columns("steps", 3)) == 0
    assert {len(cut.tables.columns("steps", rank)) for rank in (0, 1, 2)} == {4}
