"""Simulated jobs: repairs of faults save what the job without the fault saves, and the first finding explains them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulated_jobs.cases import Case, Plan
from simulated_jobs.draws import WORKLOADS, Dice, draw_options
from simulated_jobs.job import Job
from simulated_jobs.options import Fault, Options
from simulated_jobs.verdicts import judge

SMALL = Options(layers=3, steps=2, warmup=1, ranks_per_node=2)
PAUSE = Plan(Fault("pause", (1,), 4_000.0), ("host-pause",), ("no_pauses,rank=1", "rank_as_peers=1"), names_rank=True)
SLOW = Plan(Fault("slow_gpu", (2,), 1.4), ("slow-rank",), ("rank_as_peers=2", "compute_faster=1.4,rank=2"))
LATE = Plan(Fault("late_input", (3,), 5_000.0), ("late-input",), ("no_input_wait,rank=3",), names_rank=True)


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        (replace(SMALL, workload="fsdp"), PAUSE),
        (replace(SMALL, workload="tp", tp=2, message_us=60.0), SLOW),
        (replace(SMALL, workload="pipeline", pp=2, micro_batches=4, layers=1, loader="single"), LATE),
    ],
    ids=["fsdp", "tp", "pipeline"],
)
def test_the_repair_of_a_fault_saves_what_the_job_without_it_saves(
    options: Options, plan: Plan, tmp_path: Path
) -> None:
    verdict = judge(Case(options.workload, plan.fault.kind, options, plan), tmp_path)
    assert verdict.least_truth > 0.05
    assert verdict.is_first
    for saving in verdict.savings:
        assert saving.predicted == pytest.approx(saving.truth, abs=min(saving.error, 0.03)), saving.edit


def test_no_rank_is_blamed_in_a_clean_job(tmp_path: Path) -> None:
    assert not judge(Case("ddp", "clean", SMALL, None), tmp_path).blamed


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_options_give_the_same_job(workload: str) -> None:
    options = replace(draw_options(workload, Dice(7)), steps=1, warmup=1)
    first, second = (Job(options).simulate() for _ in range(2))
    assert first.rank_step_us() == second.rank_step_us()
    assert first.job_step_us() >= first.rank_step_us()
