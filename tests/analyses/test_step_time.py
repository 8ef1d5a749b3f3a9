"""Steps: their length on each rank and for the job, warm-up and outlier steps, and their source."""

from __future__ import annotations

import made
import numpy as np
import pytest
from made import part, step

from usp_prof.analyses import step_time
from usp_prof.contract import Manifest
from usp_prof.model.selection import Selection


def run(lengths: dict[int, list[int]], manifest: Manifest | None = None, **more: str) -> made.TableSet:
    """Make consecutive steps, numbered from 100."""
    tables = {}
    for rank, step_lengths in lengths.items():
        at, windows = 0, []
        for number, length in enumerate(step_lengths):
            windows.append(step(100 + number, at, at + length, **more))
            at += length
        tables[rank] = {"steps": windows}
    return made.run(tables, manifest)


def values(result: step_time.StepTimeResult, name: str) -> dict[tuple[int | str, ...], float]:
    return {tuple(v.dims.values()): v.value for v in result.values() if v.metric.id == name}


def test_ranks_and_the_run_are_means_of_cells() -> None:
    result = step_time.compute(run({0: [10, 20], 1: [14, 20]}))
    assert values(result, "step_time") == {
        (): 16.0, (0,): 15.0, (1,): 17.0, (0, 100): 10, (0, 101): 20, (1, 100): 14, (1, 101): 20,
    }  # fmt: skip
    # The job's second step begins with the first rank that begins it.
    assert values(result, "job_step_time") == {(): 19.0, (100,): 14, (101,): 24}
    assert values(result, "step_spread")[100,] == pytest.approx(4 / 14)


def test_a_slow_first_step_is_warm_up_and_a_slow_later_step_is_an_outlier() -> None:
    result = step_time.compute(run({0: [900, 100, 101, 99, 400, 100, 100]}))
    flags = {job.step: (job.warm_up, job.odd) for job in result.job}
    assert flags[100] == (True, False)
    assert flags[104] == (False, True)
    assert sum(map(any, flags.values())) == 2
    assert values(result, "job_step_time")[()] == 100
    assert [(n.code, n.detail.split(";")[0]) for n in result.notes] == [
        ("steps_odd", "odd: step 104"), ("steps_warm_up", "warm-up: step 100"),
    ]  # fmt: skip
    table = result.to_pandas()
    assert table["warm_up"].tolist() == [True] + [False] * 6
    assert table["odd"].sum() == 1
    assert table["length_ns"].tolist() == [900, 100, 101, 99, 400, 100, 100]


def test_a_single_slow_step_of_two_is_not_judged() -> None:
    assert not any(job.warm_up or job.odd for job in step_time.compute(run({0: [900, 100]})).job)


def test_tokens_per_second_exclude_outlier_steps() -> None:
    second = 1_000_000_000
    lengths = {0: [9 * second, second, second, second]}
    result = step_time.compute(run(lengths, Manifest(tokens_per_step=4096)))
    assert result.tokens_per_second == 4096.0
    assert np.isnan(step_time.compute(run(lengths)).tokens_per_second)


@pytest.mark.parametrize(("source", "says"), [
    ("profiler_step", None), ("mark", "recorder's marks"), ("annotation", "repeating annotation"),
    ("pattern", "pattern of kernels"),
])  # fmt: skip
def test_the_source_of_inferred_steps_is_reported(source: str, says: str | None) -> None:
    notes = step_time.compute(run({rank: [10] for rank in range(10)}, source=source)).notes
    assert [n.code for n in notes] == (["steps_inferred"] if says else [])
    if says:
        assert says in notes[0].detail
        assert "10 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...)" in notes[0].detail
    alone = step_time.compute(run({0: [10], 1: [10]}, source=source), Selection(ranks=(1,))).notes
    assert [n.detail.endswith("on rank 1") for n in alone] == [True] * len(alone)


def test_hosts_with_different_clocks_are_aligned_or_excluded() -> None:
    def rank(number: int, off: int, group: str) -> dict[str, list[made.Row]]:
        return {
            "steps": [step(0, off, off + 1_000_000)],
            "collectives": [part("all_reduce", off + 1, off + 900_000, group=group)],
            "ranks": [{"host": f"h{number}", "base_ns": 1}],
        }

    tied = step_time.compute(made.run({0: rank(0, 0, "g@0,1"), 1: rank(1, 70_000_000, "g@0,1")}))
    assert values(tied, "job_step_time")[()] == 1_000_000
    untied = step_time.compute(made.run({0: rank(0, 0, "g@0"), 1: rank(1, 70_000_000, "g@1")}))
    assert values(untied, "job_step_time")[()] == 1_000_000


def test_a_selection_without_steps_has_no_values() -> None:
    result = step_time.compute(run({0: [10]}), Selection(first_step=500))
    assert result.values() == []
    assert len(result.to_pandas()) == 0


def test_an_empty_step_has_no_spread() -> None:
    assert values(step_time.compute(run({0: [0]})), "step_spread")[()] == 0


def test_a_window_of_unknown_steps_has_no_figure_per_step() -> None:
    lengths = {0: [10], 1: [14]}
    result = step_time.compute(run(lengths, Manifest(tokens_per_step=4096), source="window"))
    assert {value.metric.id for value in result.values()} == {"window_time"}
    assert values(result, "window_time") == {(): 12.0, (0,): 10.0, (1,): 14.0, (0, 100): 10, (1, 100): 14}
    assert result.job == ()
    (note,) = result.notes
    assert note.code == "window_is_no_step"
    assert "profiler.step()" in note.detail
    assert result.to_pandas()["is_window"].tolist() == [True, True]


def test_ranks_with_steps_keep_their_figures_if_others_have_windows() -> None:
    windows = run({1: [50]}, source="window")
    tables = made.run(
        {
            0: {"steps": [step(100, 0, 10), step(101, 10, 20)]},
            1: {"steps": [step(0, 0, 50, source="window")]},
        },
        Manifest(tokens_per_step=100),
    )
    result = step_time.compute(tables)
    assert values(result, "step_time")[()] == 10.0
    assert values(result, "job_step_time") == {(): 10.0, (100,): 10, (101,): 10}
    assert result.tokens_per_second == 1e10
    assert values(result, "window_time")[()] == values(step_time.compute(windows), "window_time")[()] == 50.0
