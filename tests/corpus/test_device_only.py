"""Real GPU runs stripped to device activity: the same figures as from the full traces, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from corpus_sets import TRACES
from stripped import DEVICE, culprits, device_only, lengths, median_step, sources, totals, windows, within

from usp_prof.analyses import stragglers
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Findings
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
WITH_STEPS = ("torchrec-4r-sleeping-rank", "torchrec-4r-v100", "single/mi300-resnet", "single/v100-rank1-of-2")
ONE_STEP = (
    "megatron-tp8-a100", "megatron-tp2-v100", "param-dlrm-8r", "single/b200-eager", "single/h100-qwen",
    "single/triton-compiled", "single/vllm-empty-device",
)  # fmt: skip


def both(name: str, tmp_path: Path, cache: Path, **options: set[str]) -> tuple[Run, Run]:
    return open_run(TRACES / name, cache_dir=cache), device_only(TRACES / name, tmp_path / "run", **options)


@pytest.mark.parametrize("name", WITH_STEPS)
def test_device_only_traces_have_as_many_steps_as_were_marked(name: str, tmp_path: Path, cache: Path) -> None:
    full, stripped = both(name, tmp_path, cache)
    assert sources(stripped) <= {"calls", "pattern"}
    for rank in full.ranks:
        assert len(windows(stripped)[rank][0]) == len(windows(full)[rank][0])


@pytest.mark.parametrize("name", WITH_STEPS)
def test_the_parts_of_whole_periods_are_those_of_the_full_traces(name: str, tmp_path: Path, cache: Path) -> None:
    full, stripped = both(name, tmp_path, cache)
    cut = within(full, stripped)
    measured, truth = totals(stripped.tables), totals(cut)
    assert median_step(stripped.tables) == median_step(cut)
    for part in ("compute", "memcpy", "idle"):
        assert measured[part] == pytest.approx(truth[part], rel=0.01, abs=1)
    exposed = [sum(ns for role, ns in parts.items() if role.startswith("comm:")) for parts in (measured, truth)]
    assert exposed[0] == pytest.approx(exposed[1], rel=0.01, abs=1)


@pytest.mark.parametrize("name", ["torchrec-4r-sleeping-rank", "single/mi300-resnet", "single/v100-rank1-of-2"])
def test_with_equal_steps_the_median_step_is_the_marked_one(name: str, tmp_path: Path, cache: Path) -> None:
    full, stripped = both(name, tmp_path, cache)
    assert median_step(stripped.tables) == pytest.approx(median_step(full.tables), rel=0.01)
    for rank, steps in lengths(full).items():
        assert np.allclose(lengths(stripped)[rank], steps, rtol=0.01)


def test_the_culprit_is_the_rank_that_sleeps(tmp_path: Path, cache: Path) -> None:
    full, stripped = both("torchrec-4r-sleeping-rank", tmp_path, cache)
    assert culprits(stripped.tables) == culprits(full.tables) == [2]
    (row,) = (row for row in stripped.health if row.code == "exchanges_grouped")
    assert "all 4 ranks" in row.detail
    measured, truth = (stragglers.compute(run.tables) for run in (stripped, full))
    assert measured.culprits[0].cost_ns == pytest.approx(truth.culprits[0].cost_ns, rel=0.01)
    assert measured.own_time_slowdown[0] == pytest.approx(next(iter(truth.own_time_slowdown.values())), rel=0.01)


def test_the_sleeping_ranks_host_activity_is_not_replayed(tmp_path: Path, cache: Path) -> None:
    """The rank is reported as late, but without a gain for its host's delay, which device activity does not show."""
    _, stripped = both("torchrec-4r-sleeping-rank", tmp_path, cache)
    document = build(stripped.tables, analyze(stripped.tables), name="stripped")
    assert not [finding for finding in document.findings if finding.where.get("rank") == 2]
    with pytest.raises(UsageError, match="only device activity"):
        predict(stripped.tables, [Edit("rank_as_peers", "2")])


def test_a_late_rank_without_findings_is_still_reported(tmp_path: Path, cache: Path) -> None:
    """The rank is late by a second, and without host events no rule can predict the gain of its repair."""
    del cache
    run = device_only(TRACES / "torchrec-4r-sleeping-rank", tmp_path / "run")
    document = build(run.tables, analyze(run.tables), name="stripped")
    (block,) = [block for block in document.summary.blocks if isinstance(block, Findings)]
    assert not block.causes
    assert block.nothing.startswith("rank 2 delays the others by ")
    assert "skipped for lack of" in str(run.findings())


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_recording_of_one_step_stays_one_window(name: str, tmp_path: Path, cache: Path) -> None:
    _, stripped = both(name, tmp_path, cache)
    assert sources(stripped) == {"window"}
    assert all(len(numbers) == 1 for numbers, _, _ in windows(stripped).values())


@pytest.mark.parametrize("name", ["nanogpt-compare/before", "nanogpt-compare/after"])
def test_periods_that_contain_two_steps_are_not_steps(name: str, tmp_path: Path, cache: Path) -> None:
    """Every second step updates other parameters, and no kernel name shows it."""
    _, stripped = both(name, tmp_path, cache)
    assert sources(stripped) == {"window"}


@pytest.mark.parametrize("name", ["torchrec-4r-v100", "torchrec-4r-sleeping-rank"])
def test_ranks_with_launches_only_have_the_same_steps(name: str, tmp_path: Path, cache: Path) -> None:
    _, stripped = both(name, tmp_path, cache, keep=DEVICE | {"cuda_runtime"})
    assert sources(stripped) == {"calls"}
    assert {tuple(numbers) for numbers, _, _ in windows(stripped).values()} == {(0, 1, 2)}
    assert len({round(max(own) / 1e7) for own in lengths(stripped).values()}) <= 2


@pytest.mark.parametrize("complete_ranks", [{0}, {1, 2}])
def test_stripped_ranks_get_their_steps_from_marked_ones(complete_ranks: set[int], tmp_path: Path, cache: Path) -> None:
    name = "torchrec-4r-sleeping-rank"
    full, mixed = (
        open_run(TRACES / name, cache_dir=cache),
        device_only(TRACES / name, tmp_path / "run", complete_ranks=complete_ranks),
    )
    for rank, steps in lengths(full).items():
        assert windows(mixed)[rank][0] == windows(full)[rank][0]
        assert np.allclose(lengths(mixed)[rank], steps, rtol=0.01)
