"""Experts get unequal loads.

What it finds
    Expert-parallel groups in which the work of the fullest rank is at least 1.08 times the mean of its group, between
    the group's calls and over the whole recording, where equal loads would shorten the step by 3 % or more.

Why it costs time
    Every layer waits for the rank whose experts got the most tokens, in dispatch and in combine.

What to do
    Balance the router, or cap what an expert takes. torchtitan: `load_balance_coeff` of the model's MoE arguments
    (biases without an auxiliary loss); Megatron-LM: `--moe-router-load-balancing-type aux_loss` or
    `--moe-router-enable-expert-bias`, `--moe-expert-capacity-factor`; nanotron: its MoE example has an auxiliary loss,
    `moe_loss_weighting`; DeepSpeed: `capacity_factor` and `drop_tokens` of `deepspeed.moe.layer.MoE`; our trainer:
    balances by biases, unless `--fault expert-imbalance` crowds an expert.

How the gain is predicted
    The run is replayed with each rank of a group doing the mean of the group's work between its calls
    (`even_work=ep`).

When it is wrong
    When the imbalance is of the data and goes away by itself, as it does early in training; and a rank that is slow in
    all it does is `slow-rank`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses import moe
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.uneven import worst_of
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "uneven-experts"
TITLE = "Experts get unequal loads"
NEEDS = (Input.ALL_RANKS,)
UNEVEN = 1.08


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare the work of each expert group's ranks."""
    worst = worst_of(tables, graph_of(tables), Axis.EP)
    if worst is None or worst.ratio < UNEVEN:
        return
    loads = moe.compute(tables).tokens
    yield Draft(
        f"rank {worst.rank} does {worst.ratio:.2f} times its share of its expert group's work",
        {"axis": str(Axis.EP), "rank": worst.rank},
        {"ratio": worst.ratio, "tokens_per_step": loads.get(worst.rank, -1.0), **worst.spot},
        Edit("even_work", str(Axis.EP)),
        "balance the router",
        least_gain=0.03,
        rows=proof.compute_by_rank(),
        settings={
            "torchtitan": "load_balance_coeff",
            "Megatron-LM": "--moe-router-load-balancing-type",
            "DeepSpeed": "capacity_factor",
        },
    )
