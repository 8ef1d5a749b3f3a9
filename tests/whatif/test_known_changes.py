"""Synthetic runs with and without a change: each is predicted from the other, within the stated error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from later_steps import measured_ns, predicted_ns
from made_faults import run_of

from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

Sides = tuple[dict[str, Any], dict[str, Any]]
SLOW_DP = {"axis_bytes_per_second": {"dp": 40e9}}
HALF = {"forward_ns": 200_000, "input_gradient_ns": 200_000, "weight_gradient_ns": 200_000}


def declared(mesh: dict[str, int], work: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"mesh": mesh, "work": {"steps": 3, "micro_batches": 2, **(work or {})}, "shape": {"layers": 2}, **more}


def sharded(stage: int) -> dict[str, Any]:
    """Declare a ZeRO stage: the optimizer updates only a part of sharded weights."""
    speed = {"optimizer_ns": 600_000 if stage == 0 else 150_000}
    return declared({"dp": 4}, {"zero_stage": stage}, network=SLOW_DP, speed=speed)


def tables(side: dict[str, Any]) -> TableSet:
    return run_of(json.dumps(side)).tables


PIPELINE, REPLICAS = declared({"dp": 2, "pp": 2}), declared({"dp": 4}, network=SLOW_DP)
CASES: dict[str, Sides] = {
    "recompute=full": (PIPELINE, declared({"dp": 2, "pp": 2}, {"recompute": 1})),
    "recompute=none": (declared({"tp": 2}, {"recompute": 1}), declared({"tp": 2})),
    "zero=1": (sharded(0), sharded(1)),
    "zero=3": (sharded(0), sharded(3)),
    "zero=0": (sharded(3), sharded(0)),
    "zero=2": (sharded(3), sharded(2)),
    "prefetch=on comm_hidden,axis=dp,op=reduce_scatter": (
        declared({"dp": 4}, {"zero_stage": 3, "overlap_dp": False}, network=SLOW_DP),
        declared({"dp": 4}, {"zero_stage": 3}, network=SLOW_DP),
    ),
    "dp=8": (REPLICAS, declared({"dp": 8}, network=SLOW_DP)),
    "dp=2": (REPLICAS, declared({"dp": 2}, network=SLOW_DP)),
    "dp=1": (REPLICAS, declared({"dp": 1}, network=SLOW_DP)),
    "dp=8,scaling=strong": (
        declared({"dp": 4}, {"micro_batches": 4}, network=SLOW_DP),
        declared({"dp": 8}, {"micro_batches": 2}, network=SLOW_DP),
    ),
    "tp=4": (declared({"tp": 2, "dp": 2}), declared({"tp": 4, "dp": 2}, speed=HALF)),
    "cp=4": (declared({"cp": 2}), declared({"cp": 4}, speed=HALF)),
    "ep=4": (
        declared({"ep": 2, "dp": 4}, shape={"layers": 2, "experts": 8}),
        declared({"ep": 4, "dp": 4}, shape={"layers": 2, "experts": 8}),
    ),
    "micro_batches=5": (REPLICAS, declared({"dp": 4}, {"micro_batches": 5}, network=SLOW_DP)),
    "micro_batches=4": (PIPELINE, declared({"dp": 2, "pp": 2}, {"micro_batches": 4})),
    "bandwidth=0.5,axis=dp": (REPLICAS, declared({"dp": 4}, network={"axis_bytes_per_second": {"dp": 20e9}})),
    "bandwidth=2,axis=dp": (REPLICAS, declared({"dp": 4}, network={"axis_bytes_per_second": {"dp": 80e9}})),
    "comm_dtype=fp8,axis=dp": (REPLICAS, declared({"dp": 4}, network={"axis_bytes_per_second": {"dp": 80e9}})),
    "latency=4,axis=tp": (
        declared({"tp": 2}, network={"latency_ns": 40_000}),
        declared({"tp": 2}, network={"latency_ns": 10_000}),
    ),
    "device=other,peak=2,memory=2": (
        REPLICAS,
        declared({"dp": 4}, speed=HALF | {"optimizer_ns": 300_000}, network=SLOW_DP),
    ),
    "no_launch_gaps": (
        declared({"dp": 2}, speed={"op_gap_ns": 60_000}),
        declared({"dp": 2}, speed={"op_gap_ns": 1_000}),
    ),
}


@pytest.mark.parametrize("mesh", [{"dp": 4}, {"dp": 2, "pp": 2}], ids=["dp", "pp"])
@pytest.mark.parametrize(("now", "wanted"), [(0, 1), (0, 3), (1, 3), (3, 1), (1, 0)])
def test_a_gather_counts_once_per_step_and_starts_when_its_stage_can(
    mesh: dict[str, int], now: int, wanted: int
) -> None:
    links = {"axis_bytes_per_second": {"dp": 10e9}}  # gathers take longer than the concurrent work
    before, after = (
        tables(declared(mesh, {"zero_stage": stage}, network=links, speed={"optimizer_ns": 600_000 // mesh["dp"]}))
        for stage in (now, wanted)
    )
    predicted = predict(before, [parse_edit(f"zero={wanted}")])
    assert predicted_ns(predicted) == pytest.approx(measured_ns(after), rel=0.08)


@pytest.mark.parametrize("edits", CASES)
def test_a_known_change_is_predicted_within_the_stated_error(edits: str) -> None:
    before, after = (tables(side) for side in CASES[edits])
    predicted = predict(before, [parse_edit(edit) for edit in edits.split()])
    truth = measured_ns(after)
    off = abs(predicted_ns(predicted) - truth) / predicted.before_ns
    assert off <= predicted.error_fraction
    change = abs(truth / measured_ns(before) - 1)
    assert predicted.error_fraction <= max(0.03, 0.4 * change + 0.05), "an error as large as the change says nothing"


def test_modeled_gains_are_marked_as_modeled() -> None:
    predicted = predict(tables(REPLICAS), [parse_edit("dp=8")])
    assert predicted.basis is Basis.MODELLED
    assert predicted.layout_after.dp == 8
    assert predicted.layout_after.tokens_per_step == 2 * predicted.layout_before.tokens_per_step


def test_strong_scaling_keeps_the_batch() -> None:
    side = CASES["dp=8,scaling=strong"][0]
    predicted = predict(tables(side), [parse_edit("dp=8,scaling=strong")])
    assert predicted.layout_after.tokens_per_step == predicted.layout_before.tokens_per_step
    assert predicted.layout_after.micro_batches == 2


def test_products_in_a_smaller_type_move_fewer_bytes() -> None:
    run = tables(REPLICAS)
    faster = predict(run, [parse_edit("matmul_dtype=fp8")])
    assert 0.1 < faster.gain_fraction < 0.5
    assert predict(run, [parse_edit("matmul_dtype=bf16")]).gain_fraction == pytest.approx(0, abs=1e-3)


def test_a_known_device_is_applied_by_its_ratios() -> None:
    run = tables(REPLICAS)
    assert predict(run, [parse_edit("device=B200")]).gain_fraction > 0.3
    assert predict(run, [parse_edit("device=A100-SXM4-80GB")]).gain_fraction < -0.5


@pytest.mark.parametrize("wanted", ["tree", "direct"])
def test_other_algorithms_have_other_hops_and_bytes(wanted: str) -> None:
    run = tables(REPLICAS)
    changed = predict(run, [parse_edit(f"algorithm={wanted},axis=dp")])
    assert changed.after_ns != changed.before_ns
    assert predict(run, [parse_edit("algorithm=ring,axis=dp")]).gain_fraction == pytest.approx(0, abs=1e-3)


def test_layers_are_moved_from_a_slow_stage() -> None:
    run = tables({**PIPELINE, "shape": {"layers": 8}, "speed": {"last_stage_factor": 1.6}})
    moved = predict(run, [parse_edit("move_layers=1,source=1,target=0")])
    even = predict(run, [parse_edit("balance_stages")])
    back = predict(run, [parse_edit("move_layers=1,source=0,target=1")])
    assert back.gain_fraction < 0 < min(moved.gain_fraction, even.gain_fraction)


@pytest.mark.parametrize(
    ("side", "edit", "says"),
    [
        (PIPELINE, "tp=4", "has no tp"),
        (PIPELINE, "dp=0", "whole number"),
        (PIPELINE, "dp=3.5", "whole number"),
        (PIPELINE, "dp=8,scaling=strong", "cannot be shared"),
        (PIPELINE, "dp=8,scaling=odd", "weak or strong"),
        (PIPELINE, "zero=4", "stages 0 to 3"),
        (PIPELINE, "recompute=some", "hint"),
        (PIPELINE, "prefetch=on", "no weights are gathered"),
        (PIPELINE, "prefetch=maybe", "on or off"),
        (PIPELINE, "comm_dtype=fp7,axis=dp", "not a number type"),
        (PIPELINE, "matmul_dtype=int3", "not a number type"),
        (PIPELINE, "device=Abacus", "hint"),
        (PIPELINE, "device=other,peak=0", "more than 0"),
        (PIPELINE, "algorithm=star", "hint"),
        (PIPELINE, "bandwidth=2,axis=ep", "no communication of axis ep"),
        (PIPELINE, "bandwidth=2,op=gather", "has no gather"),
        (PIPELINE, "comm_faster=2,axs=dp", "hint"),
        (PIPELINE, "no_launch_gaps,axis=dp", "takes no keys"),
        (PIPELINE, "no_pauses,axis=dp", "hint"),
        (PIPELINE, "no_pauses,rank=99", "has no rank 99"),
        (PIPELINE, "schedule=1f1b,x=2", "hint"),
        (PIPELINE, "move_layers=9,source=1,target=0", "a stage has"),
        (PIPELINE, "move_layers=1,source=7,target=0", "no such stage"),
        (declared({"dp": 2}, {"micro_batches": 1}), "micro_batches=4", "one micro-batch"),
        (declared({"dp": 2}, style="gloo"), "matmul_dtype=bf16", "device"),
        (PIPELINE, "ideal,rank=77", "nothing in the run"),
        (PIPELINE, "ideal,kind=X", "kinds of actions"),
    ],
)
def test_unknown_changes_are_refused_with_a_hint(side: dict[str, Any], edit: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        predict(tables(side), [parse_edit(edit)])
    assert caught.value.hint
    assert says == "hint" or says in caught.value.message
