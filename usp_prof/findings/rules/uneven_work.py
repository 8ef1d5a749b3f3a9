"""Rules on uneven work: experts and parts of a sequence that hold more than their share of their group's work.

Both find the rank with the largest share over the whole recording. A rank that takes as much longer even in what it
does best has no more work than the others: it is slow (`slow-rank`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import moe
from usp_prof.columns.rows import group_codes
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.model.edit import Edit
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.whatif.edits.balance import shares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.columns.arrays import Floats
    from usp_prof.model.finding import PlainMap
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


UNEVEN = 1.08
"""The fullest rank does so many times the mean work of its group."""


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
        worst = worst_of(tables, Axis.EP)
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
        worst = worst_of(tables, Axis.CP)
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


# The rank with more than an equal share of its group's work, and whether it is slow in all that it does.

SHARED = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST = 0.1
"""A slow rank is slower in all that it does: the tenth in which it compares best shows it, too."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """A rank with more than its share: its work relative to the group's mean, over all steps, and the evidence."""

    rank: int
    ratio: float
    spot: PlainMap


def worst_of(tables: TableSet, axis: str) -> Uneven | None:
    """Find the rank with the largest share of its group's work on an axis, memoized; none that is slow everywhere."""
    return tables.memo(("uneven work", axis), lambda: _worst_of(tables, graph_of(tables), axis))


def _worst_of(tables: TableSet, graph: Graph, axis: str) -> Uneven | None:
    sums: dict[int, list[float]] = {}
    for group in shares(graph, axis):
        work = group.work.sum(axis=1)
        for rank, own in zip(group.ranks, (work / max(work.mean(), 1.0)).tolist(), strict=True):
            sums.setdefault(rank, []).append(own)
    if not sums:
        return None
    ratio = {rank: float(np.median(ratios)) for rank, ratios in sums.items()}
    worst = max(ratio, key=lambda rank: (ratio[rank], -rank))
    if everywhere(tables, graph, worst) >= 1 + (ratio[worst] - 1) / 2:
        return None
    is_worst_compute = (graph.nodes.rank == worst) & (graph.nodes.kind == NodeKind.COMPUTE)
    return Uneven(worst, ratio[worst], longest(graph, is_worst_compute))


def everywhere(tables: TableSet, graph: Graph, rank: int) -> float:
    """Return how much longer a rank takes than its groups' median even in the tenth where it compares best.

    Work is compared between the same calls of its groups, by op and shapes. If the rank is in no group that shares
    work, a slow rank and one with more work look the same: infinity.
    """
    least = float("inf")
    for axis in SHARED:
        groups = [group for group in shares(graph, axis) if rank in group.ranks]
        if groups:
            pieces = [_best_tenth(group.work, group.ranks.index(rank)) for group in groups]
            least = min(least, float(np.median(pieces)), _by_shape(tables, graph, groups[0].ranks, rank))
    return least


def _by_shape(tables: TableSet, graph: Graph, ranks: tuple[int, ...], rank: int) -> float:
    """Compare op by op: each kind is a name and its shapes."""
    nodes, shape = graph.nodes, work_of(tables).shape
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & np.isin(nodes.rank, ranks) & graph.measured)
    if not len(rows):
        return 1.0
    kind = group_codes(nodes.name[rows], shape[rows])
    place = np.searchsorted(np.array(ranks), nodes.rank[rows])
    work = np.zeros((len(ranks), int(kind.max()) + 1))
    np.add.at(work, (place, kind), nodes.duration[rows])
    return _best_tenth(work, ranks.index(rank))


def _best_tenth(work: Floats, place: int) -> float:
    """Return the ratio of one row to the median row in the columns where it is least, a tenth of the median's sum."""
    own, usual = work[place], np.median(work, axis=0)
    known = usual > 0
    if not known.any():
        return 1.0
    ratio, weight = own[known] / usual[known], usual[known]
    order = np.argsort(ratio, kind="stable")
    reached = np.searchsorted(np.cumsum(weight[order]), BEST * weight.sum())
    return float(ratio[order][min(int(reached), len(order) - 1)])
