"""Rules on pairs: each fires on the faulty run, not on the repaired one, and predicts the repair's gain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from made_faults import run_of
from made_pairs import PAIRS, PLAIN

from usp_prof.findings import rule
from usp_prof.replay.step_times import unedited
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.findings.draft import Draft
    from usp_prof.run import Run

pytestmark = pytest.mark.slow


def _expected_findings(name: str, run: Run) -> list[tuple[Draft, float]]:
    """Return the notable findings of a rule, with their gains."""
    drafts = rule(name.replace("_", "-")).look(run.tables)
    gains = [(draft, predict(run.tables, [draft.edit]).gain_fraction) for draft in drafts]
    return [(draft, gain) for draft, gain in gains if gain >= draft.least_gain]


@pytest.mark.parametrize("name", PAIRS)
def test_each_rule_finds_its_fault_with_the_gain_of_the_repair(name: str) -> None:
    faulty, repaired, within = PAIRS[name]
    runs = [run_of(json.dumps(declared)) for declared in (faulty, repaired)]
    ((draft, gain),) = _expected_findings(name, runs[0])
    steps = [unedited(run.tables).mean_measured_ns for run in runs]
    assert gain == pytest.approx(1 - steps[1] / steps[0], abs=within)
    assert draft.title
    assert draft.advice
    assert set(draft.evidence) >= {"at_rank", "start_ns", "end_ns"} or name in (
        "few_micro_batches",
        "needless_recompute",
    )
    assert _expected_findings(name, runs[1]) == []


@pytest.mark.parametrize("mesh", [{"pp": 4}, {"pp": 2, "dp": 2}])
@pytest.mark.parametrize("spread", [0.15, 0.5])
def test_unequal_micro_batches_delay_a_pipeline(mesh: dict[str, int], spread: float) -> None:
    repaired = {"mesh": mesh, "work": {"steps": 3, "micro_batches": 8}}
    faulty = repaired | {"faults": [{"kind": "unequal_lengths", "rank": 1, "factor": spread}]}
    runs = [run_of(json.dumps(declared)) for declared in (faulty, repaired)]
    ((draft, gain),) = _expected_findings("unequal_lengths", runs[0])
    steps = [unedited(run.tables).mean_measured_ns for run in runs]
    assert str(draft.edit) == "even_work=pp"
    assert gain == pytest.approx(1 - steps[1] / steps[0], abs=0.01)
    assert _expected_findings("unequal_lengths", runs[1]) == []


def test_a_rank_with_more_work_by_design_is_not_a_slow_rank() -> None:
    for name in ("uneven_experts", "uneven_sequence"):
        assert _expected_findings("slow_rank", run_of(json.dumps(PAIRS[name][0]))) == []


def test_several_slow_ranks_are_one_finding() -> None:
    faults = [{"kind": "slow_rank", "rank": rank, "factor": 1.4} for rank in (2, 3)]
    ((draft, gain),) = _expected_findings("slow_rank", run_of(json.dumps(PLAIN | {"faults": faults})))
    assert (draft.where["ranks"], str(draft.edit)) == ("2-3", "rank_as_peers=2+3")
    assert gain > 0.2


def test_exposed_tensor_parallel_communication_is_an_opportunity() -> None:
    ((draft, _),) = _expected_findings("exposed_tensor_parallel", run_of(json.dumps(PAIRS["wide_tensor_parallel"][0])))
    assert draft.opportunity


def test_the_op_that_is_furthest_below_the_roofline_is_an_opportunity() -> None:
    ((draft, gain),) = _expected_findings("slow_op", run_of(json.dumps(PLAIN)))
    assert draft.opportunity
    assert draft.evidence["efficiency"] < 0.3
    assert gain > 0.03
