"""Synthetic runs with a fault that one rule finds, each with the same run repaired; cases for the rules."""

from __future__ import annotations

from typing import Any

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
        0.2,  # the repaired run has four times as many, so that it is not flagged; its gain is larger
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
