"""Rules on uneven work: experts and parts of a sequence that have more than their share of their group's work."""

from __future__ import annotations

from collections.abc import Iterable

from usp_prof.analyses import moe
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.work_shares import UNEVEN, largest_share
from usp_prof.model.edit import Edit
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import Axis
from usp_prof.tables.table_set import TableSet


class UnevenExperts:
    """Experts have unequal loads.

    What it finds
        Expert-parallel groups in which the work of the fullest rank is at least 1.08 times the group's mean, between
        the group's calls and over the whole recording, if equal loads would shorten the step by at least 3%.

    Why it costs time
        Every layer waits for the rank whose experts received the most tokens, in dispatch and in combine.

    What to do
        Balance the router, or limit the tokens of an expert.
        - torchtitan: `load_balance_coeff` of the model's MoE arguments.
        - Megatron-LM: `--moe-router-load-balancing-type aux_loss` or `--moe-router-enable-expert-bias`,
          `--moe-expert-capacity-factor`.
        - nanotron: `moe_loss_weighting` of its MoE example.
        - DeepSpeed: `capacity_factor` and `drop_tokens` of `deepspeed.moe.layer.MoE`.
        - our trainer: balances by biases unless `--fault expert-imbalance` is set.

    How the gain is predicted
        The run is replayed with each rank of a group doing the group's mean work between its calls (`even_work=ep`).

    When it is wrong
        If the imbalance comes from the data and disappears later, as early in training. A rank that is slow in
        everything it does is a `slow-rank`.
    """

    CODE = RuleCode.UNEVEN_EXPERTS
    TITLE = "Experts have unequal loads"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the work of each expert group's ranks."""
        worst = largest_share(tables, Axis.EP)
        if worst is None or worst.ratio < UNEVEN:
            return
        loads = moe.compute(tables).tokens
        yield Draft(
            f"Rank {worst.rank} does {worst.ratio:.2f}x the mean work of its expert group",
            {"axis": str(Axis.EP), "rank": worst.rank},
            {"ratio": worst.ratio, "tokens_per_step": loads.get(worst.rank, -1.0), **worst.spot},
            Edit("even_work", str(Axis.EP)),
            "Balance the router, or limit the tokens per expert",
            least_gain=0.03,
            rows=proof.COMPUTE_BY_RANK,
            settings={
                "torchtitan": "load_balance_coeff",
                "Megatron-LM": "--moe-router-load-balancing-type",
                "DeepSpeed": "capacity_factor",
            },
        )


class UnevenSequence:
    """Parts of a sequence have unequal work.

    What it finds
        Context-parallel groups in which one rank has at least 1.08 times the group's mean work, between the group's
        exchanges and over the whole recording, if equal work would shorten the step by at least 3%. With a causal mask
        and contiguous parts, the last of n ranks does nearly twice the mean work of attention.

    Why it costs time
        In every exchange, the group waits for the rank with the most work.

    What to do
        Divide the sequence so that each rank has an early and a late part (zigzag).
        - torchtitan: PyTorch balances by default; check
          `torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance`.
        - Megatron-LM: balances by default; check loaders that split earlier.
        - nanotron: has no context parallelism; split in the collator.
        - DeepSpeed: Ulysses (`DistributedAttention`) divides heads and is even.
        - our trainer: `--cp-layout zigzag`, or `--cp-method ulysses`.

    How the gain is predicted
        The run is replayed with each rank of a group doing the group's mean work between its exchanges
        (`even_work=cp`).

    When it is wrong
        If documents of different lengths are packed, so that the mask decides the work of each rank. Then zigzag is
        uneven too.
    """

    CODE = RuleCode.UNEVEN_SEQUENCE
    TITLE = "Parts of a sequence have unequal work"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the work of each context-parallel group's ranks."""
        worst = largest_share(tables, Axis.CP)
        if worst is not None and worst.ratio >= UNEVEN:
            yield Draft(
                f"Rank {worst.rank} does {worst.ratio:.2f}x the mean work of its context-parallel group",
                {"axis": str(Axis.CP), "rank": worst.rank},
                {"ratio": worst.ratio, **worst.spot},
                Edit("even_work", str(Axis.CP)),
                "Give each rank an early and a late part of the sequence",
                least_gain=0.03,
                rows=proof.COMPUTE_BY_RANK,
                settings={"our trainer": "--cp-layout zigzag"},
            )
