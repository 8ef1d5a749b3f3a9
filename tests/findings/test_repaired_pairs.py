"""Each rule fires on a run with its fault, not on the repaired one, and its gain is what the repair brings."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from made_faults import run_of

from usp_prof.whatif.predict import predict, unedited

if TYPE_CHECKING:
    from usp_prof.findings.draft import Draft
    from usp_prof.run import Run

Declared = dict[str, Any]


def _speed(time: int, **more: Any) -> Declared:
    return {"speed": dict.fromkeys(("forward_ns", "input_gradient_ns", "weight_gradient_ns"), time) | more}


def _network(**rates: float) -> Declared:
    return {"network": {"axis_bytes_per_second": rates}}


def _fault(kind: str, **how: float) -> Declared:
    return {"faults": [{"kind": kind, "rank": 1, **how}]}


PLAIN: Declared = {"mesh": {"dp": 4}, "work": {"steps": 3}}
BUSY = PLAIN | _speed(100_000)
BUSIER = {"mesh": {"dp": 4}, "work": {"steps": 3, "micro_batches": 8}, "shape": {"layers": 2}, **_speed(100_000)}
SHARDED = {"mesh": {"dp": 4}, **_network(dp=1.6e11)}
EXPERTS = {"mesh": {"dp": 4, "ep": 4}, "work": {"steps": 3}}
SEQUENCE = {"mesh": {"cp": 4}, "work": {"steps": 3}, **_network(cp=3e11)}
PIPELINE = {"mesh": {"pp": 4}}
WIDE = {"mesh": {"tp": 4}, "work": {"steps": 3}, "clocks": {"ranks_per_host": 2}}

PAIRS: dict[str, tuple[Declared, Declared, float]] = {
    "slow_host": (BUSY | _fault("slow_host", factor=4.0), BUSY, 0.02),
    "blocking_sync": (BUSIER | _fault("blocking_sync"), BUSIER, 0.01),
    "blocking_copies": (PLAIN | _fault("pageable_copy", delay_ns=2_000_000), PLAIN, 0.01),
    "memory_pressure": (PLAIN | _fault("device_allocation", delay_ns=3_000_000), PLAIN, 0.02),
    "unfused_optimizer": (PLAIN | _fault("unfused_optimizer", factor=2500), PLAIN, 0.03),
    "uneven_experts": (EXPERTS | _fault("expert_imbalance", factor=1.8), EXPERTS, 0.02),
    "uneven_sequence": (SEQUENCE | _fault("contiguous_cp"), SEQUENCE, 0.02),
    "unequal_lengths": (PLAIN | _fault("unequal_lengths", factor=0.3), PLAIN, 0.06),
    "exposed_gathers": (
        SHARDED | {"work": {"zero_stage": 3, "steps": 3, "overlap_dp": False}},
        SHARDED | {"work": {"zero_stage": 3, "steps": 3}},
        0.01,
    ),
    "few_micro_batches": (
        PIPELINE | {"work": {"micro_batches": 4}} | _speed(800_000),
        PIPELINE | {"work": {"micro_batches": 16}} | _speed(200_000),
        0.2,  # the repaired run has four times as many, to be one that is not flagged; its gain is larger
    ),
    "needless_recompute": (PLAIN | {"work": {"steps": 3, "recompute": 1}}, PLAIN, 0.02),
    "low_bandwidth": (PLAIN | _network(dp=1e10), PLAIN | _network(dp=3.4e11), 0.01),
    "wasted_tiles": (
        PLAIN | {"shape": {"vocab": 50257}, "speed": {"head_ns": 2_500_000}},
        PLAIN | {"shape": {"vocab": 50304}, "speed": {"head_ns": 1_000_000}},
        0.05,
    ),
    "wide_tensor_parallel": (WIDE | _network(tp=2e10), {**WIDE, "clocks": {}, **_network(tp=3.4e11)}, 0.03),
}


def _found(name: str, run: Run) -> list[tuple[Draft, float]]:
    """Give what a rule raises that is worth a word, with its gain."""
    drafts = import_module(f"usp_prof.findings.rules.{name}").look(run.tables)
    gains = [(draft, predict(run.tables, [draft.edit]).gain_fraction) for draft in drafts]
    return [(draft, gain) for draft, gain in gains if gain >= draft.least_gain]


@pytest.mark.parametrize("name", PAIRS)
def test_a_rule_fires_on_its_fault_and_is_worth_what_the_repair_brings(name: str) -> None:
    faulty, repaired, within = PAIRS[name]
    runs = [run_of(json.dumps(declared)) for declared in (faulty, repaired)]
    ((draft, gain),) = _found(name, runs[0])
    steps = [unedited(run.tables).mean_measured_ns for run in runs]
    assert gain == pytest.approx(1 - steps[1] / steps[0], abs=within)
    assert draft.title
    assert draft.advice
    assert set(draft.evidence) >= {"at_rank", "start_ns", "end_ns"} or name in (
        "few_micro_batches",
        "needless_recompute",
    )
    assert _found(name, runs[1]) == []


def test_a_rank_with_more_work_by_design_is_no_slow_rank() -> None:
    for name in ("uneven_experts", "uneven_sequence"):
        assert _found("slow_rank", run_of(json.dumps(PAIRS[name][0]))) == []


def test_several_slow_ranks_are_one_finding() -> None:
    faults = [{"kind": "slow_rank", "rank": rank, "factor": 1.4} for rank in (2, 3)]
    ((draft, gain),) = _found("slow_rank", run_of(json.dumps(PLAIN | {"faults": faults})))
    assert (draft.where["ranks"], str(draft.edit)) == ("2-3", "rank_as_peers=2+3")
    assert gain > 0.2


def test_exposed_tensor_parallel_communication_is_an_opportunity() -> None:
    ((draft, _),) = _found("exposed_tensor_parallel", run_of(json.dumps(PAIRS["wide_tensor_parallel"][0])))
    assert draft.opportunity


def test_the_op_that_is_furthest_below_the_roofline_is_an_opportunity() -> None:
    ((draft, gain),) = _found("slow_op", run_of(json.dumps(PLAIN)))
    assert draft.opportunity
    assert draft.evidence["efficiency"] < 0.3
    assert gain > 0.03
