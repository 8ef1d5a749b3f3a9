"""Rules on uneven work: experts, parts of a sequence and micro-batches that hold more than their share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import moe
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest, spot
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, work_of
from usp_prof.whatif.edits.balance import REPLICATED, shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from usp_prof.columns.arrays import Floats, Ints
    from usp_prof.model.finding import PlainMap
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


UNEVEN = 1.08
"""The fullest rank does so many times the mean work of its group."""


class UnevenExperts:
    """Experts get unequal loads.

    What it finds
        Expert-parallel groups in which the work of the fullest rank is at least 1.08 times the mean of its group,
        between the group's calls and over the whole recording, where equal loads would shorten the step by 3 % or more.

    Why it costs time
        Every layer waits for the rank whose experts got the most tokens, in dispatch and in combine.

    What to do
        Balance the router, or cap what an expert takes. torchtitan: `load_balance_coeff` of the model's MoE arguments
        (biases without an auxiliary loss); Megatron-LM: `--moe-router-load-balancing-type aux_loss` or
        `--moe-router-enable-expert-bias`, `--moe-expert-capacity-factor`; nanotron: its MoE example has an auxiliary
        loss, `moe_loss_weighting`; DeepSpeed: `capacity_factor` and `drop_tokens` of `deepspeed.moe.layer.MoE`; our
        trainer: balances by biases, unless `--fault expert-imbalance` crowds an expert.

    How the gain is predicted
        The run is replayed with each rank of a group doing the mean of the group's work between its calls
        (`even_work=ep`).

    When it is wrong
        When the imbalance is of the data and goes away by itself, as it does early in training; and a rank that is slow
        in all it does is `slow-rank`.
    """

    CODE = "uneven-experts"
    TITLE = "Experts get unequal loads"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
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
            "balance the router, or cap the tokens of an expert",
            least_gain=0.03,
            rows=proof.COMPUTE_BY_RANK,
            settings={
                "torchtitan": "load_balance_coeff",
                "Megatron-LM": "--moe-router-load-balancing-type",
                "DeepSpeed": "capacity_factor",
            },
        )


class UnevenSequence:
    """Parts of a sequence get unequal work.

    What it finds
        Context-parallel groups in which the work of one rank is at least 1.08 times the mean of its group, between the
        group's exchanges and over the whole recording, where equal work would shorten the step by 3 % or more. With a
        causal mask and contiguous parts the last of n ranks does nearly twice the mean of the attention.

    Why it costs time
        The group waits in every exchange for the rank with the most work.

    What to do
        Cut the sequence so that each rank holds an early and a late piece (zigzag). torchtitan: PyTorch's context
        parallel balances by itself, unless
        `torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance` is off; Megatron-LM: cuts so
        by itself, look at loaders that cut before it; nanotron: has no context parallelism of its own, cut in the
        collator; DeepSpeed: Ulysses (`DistributedAttention`) shares heads instead and is even; our trainer:
        `--cp-layout zigzag`, or `--cp-method ulysses`.

    How the gain is predicted
        The run is replayed with each rank of a group doing the mean of the group's work between its exchanges
        (`even_work=cp`).

    When it is wrong
        When documents of unequal lengths are packed, so that the mask decides who has how much: then zigzag is not even
        either.
    """

    CODE = "uneven-sequence"
    TITLE = "Parts of a sequence get unequal work"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the work of each context-parallel group's ranks."""
        worst = worst_of(tables, graph_of(tables), Axis.CP)
        if worst is not None and worst.ratio >= UNEVEN:
            yield Draft(
                f"rank {worst.rank} does {worst.ratio:.2f} times its share of its sequences' work",
                {"axis": str(Axis.CP), "rank": worst.rank},
                {"ratio": worst.ratio, **worst.spot},
                Edit("even_work", str(Axis.CP)),
                "give each rank an early and a late piece of the sequence",
                least_gain=0.03,
                rows=proof.COMPUTE_BY_RANK,
                settings={"our trainer": "--cp-layout zigzag"},
            )


VARIES, TOGETHER, FEWEST = 0.05, 0.9, 8
BY_CHANCE = 2.0
"""Standard errors by which the mean of a rank's micro-batches may lie above that of its peers' by chance."""
AXES = (Axis.PP, *REPLICATED)


class UnequalLengths:
    """Sequences of unequal lengths make micro-batches unequal.

    What it finds
        Runs in which the times of a micro-batch's forward and backward, within one rank and step, vary by 5 % or more
        and together (correlation 0.9 or more over at least eight of them), where equal work on all replicas (in a
        pipeline: in all of its micro-batches) would shorten the step by 3 % or more. That the two go together is the
        mark of the data: noise of the machine strikes either.

    Why it costs time
        Attention grows with the square of a sequence's length; replicas wait for the one whose batch took longest, in
        each step for another. Within a pipeline all stages wait for the longest micro-batch as it passes.

    What to do
        Give each replica the same sum of squares: sort or pack by length. torchtitan: its text loader packs to a fixed
        length, look at your own; Megatron-LM: packed sequences (`--reset-attention-mask` lets documents differ: balance
        them when preprocessing); nanotron: packs in its collator; DeepSpeed: `data_efficiency` with `dynamic_batching:
        {enabled: true, lr_scaling_method: ...}`; our trainer: `--fault unequal-lengths` makes it, its own data is even.

    How the gain is predicted
        The run is replayed with each replica doing the mean work of its peers between its synchronisations, step by
        step (`even_work=dp,per=step`); in a pipeline with each micro-batch doing the mean of its stage and step, over
        all replicas (`even_work=pp`).

    When it is wrong
        When micro-batches differ for another reason that both passes share (experts chosen, a throttling device).
    """

    CODE = "unequal-lengths"
    TITLE = "Sequences of unequal lengths make micro-batches unequal"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Correlate forward and backward of micro-batches."""
        graph = graph_of(tables)
        axis = _unequal_over(graph)
        passes = passes_of(tables)
        if axis is not None and len(passes.rank) >= FEWEST and passes.together >= TOGETHER:
            longest = int(passes.node[np.argmax(passes.forward)])
            begin, end = int(graph.nodes.start[longest]), int(graph.nodes.end[longest])
            variation = float(passes.forward.std())
            yield Draft(
                "micro-batches differ in length: their forward and backward vary together",
                {"axis": str(axis)},
                {"correlation": passes.together, "variation": variation, "micro_batches": len(passes.rank)}
                | dict(spot(graph, longest, begin, end)),
                evened(graph),
                "give each replica and micro-batch the same sum of squared lengths",
                least_gain=0.03,
                rows=proof.largest(
                    "actions", "kind IN ('F', 'B') AND micro_batch >= 0", "device_end_ns - device_start_ns"
                ),
                settings={"DeepSpeed": "data_efficiency.dynamic_batching"},
            )


def _unequal_over(graph: Graph) -> Axis | None:
    """Give the axis that waits for the longest micro-batch: the stages of a pipeline, else replicas."""
    return next((each for each in AXES if graph.on_axis(str(each)).any()), None)


def evened(graph: Graph) -> Edit:
    """Share the work of each step evenly among replicas, or among the micro-batches of a pipeline."""
    axis = _unequal_over(graph) or Axis.DP
    return Edit("even_work", str(axis), () if axis is Axis.PP else (("per", "step"),))


@dataclass(frozen=True, slots=True)
class Passes:
    """Micro-batches in the steps and stages that have several: one entry each."""

    rank: Ints
    forward: Floats
    """Time of its forward over the mean of its rank, stage and step."""
    backward: Floats
    duration: Ints
    """Forward and backward, in ns."""
    node: Ints
    """The first node of it."""

    @property
    def together(self) -> float:
        """Give the correlation of forward and backward; 0 where they hardly vary."""
        if not len(self.rank) or min(self.forward.std(), self.backward.std()) < VARIES:
            return 0.0
        return float(np.corrcoef(self.forward, self.backward)[0, 1])

    def of(self, ranks: Sequence[int]) -> Passes:
        """Give those of some ranks."""
        own = np.isin(self.rank, ranks)
        return Passes(self.rank[own], self.forward[own], self.backward[own], self.duration[own], self.node[own])


def passes_of(tables: TableSet) -> Passes:
    """Measure forward and backward of each micro-batch."""
    return tables.memo("micro-batch passes", lambda: _measure_passes(graph_of(tables), tables))


def _measure_passes(graph: Graph, tables: TableSet) -> Passes:
    work, nodes = work_of(tables), graph.nodes
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0))
    rows = rows[(work.phase[rows] == FORWARD) | (work.phase[rows] == BACKWARD)]
    has_actions = bool((work.micro_batch[rows] >= 0).any())
    if has_actions:
        rows = rows[work.micro_batch[rows] >= 0]
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return Passes(nothing, nothing.astype(float), nothing.astype(float), nothing, nothing)
    places = (nodes.rank[rows], work.stage[rows], nodes.step[rows])
    group = group_codes(*places, work.micro_batch[rows] if has_actions else _pass_number(graph, work.phase, rows))
    one = first_rows(group)
    forward, backward = (
        np.bincount(group, np.where(work.phase[rows] == phase, nodes.duration[rows], 0))
        for phase in (FORWARD, BACKWARD)
    )
    # By micro-batch: the code of its rank, stage and step, of which there must be several to compare.
    home = group_codes(*(each[one] for each in places))
    good = np.bincount(home)[home] > 1
    relative = []
    for each in (forward, backward):
        mean = (np.bincount(home, each) / np.bincount(home))[home]
        good &= mean > 0
        relative.append(each / np.maximum(mean, 1))
    duration = (forward + backward).astype(np.int64)
    return Passes(nodes.rank[rows[one]][good], relative[0][good], relative[1][good], duration[good], rows[one][good])


def _pass_number(graph: Graph, phase: Ints, rows: Ints) -> Ints:
    """Give passes numbers where no pipeline marks them: the next begins where forward follows backward.

    F F B B F B  gives  0 0 0 0 1 1.
    """
    nodes = graph.nodes
    order = np.lexsort((nodes.start[rows], nodes.step[rows], nodes.rank[rows]))
    is_forward = phase[rows[order]] == FORWARD
    begins = np.append(False, is_forward[1:] & ~is_forward[:-1])
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(begins)  # counts on over ranks and steps, which are told apart anyway
    return number


def has_longer_sequences(tables: TableSet, rank: int, peers: Sequence[int], ratio: float) -> bool:
    """Say whether a rank that is slower than its peers only has longer sequences in some micro-batches.

    Forward and backward vary together over all ranks, and either the rank is over its peers by no more than chance
    makes of so many micro-batches; or its own vary so too, and its shortest are not half as much over its peers'
    shortest as it is over them in all.
    """
    passes = passes_of(tables)
    own, others = passes.of([rank]), passes.of(peers)
    if len(passes.rank) < FEWEST or passes.together < TOGETHER or not len(own.rank) or not len(others.rank):
        return False
    error = sum(float(each.duration.var()) / len(each.rank) for each in (own, others)) ** 0.5
    if float(own.duration.mean() - others.duration.mean()) <= BY_CHANCE * error:
        return True
    shortest, usual = (float(np.quantile(each.duration, BEST)) for each in (own, others))
    return own.together >= TOGETHER and shortest < (1 + (ratio - 1) / 2) * usual


# The rank with more than an equal share of its group's work, and whether it is slow in all that it does.

SHARED = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST = 0.1
"""A slow rank is slower in all that it does: the tenth in which it compares best shows it, too."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """A rank with more than its share: its work over the group's mean, over all steps, and where that is seen."""

    rank: int
    ratio: float
    spot: PlainMap


def worst_of(tables: TableSet, graph: Graph, axis: str) -> Uneven | None:
    """Find the rank with the largest share of its group's work on an axis; not one that is slow everywhere."""
    sums: dict[int, list[float]] = {}
    for each in shares(graph, axis):
        work = each.work.sum(axis=1)
        for rank, own in zip(each.ranks, (work / max(work.mean(), 1.0)).tolist(), strict=True):
            sums.setdefault(rank, []).append(own)
    if not sums:
        return None
    ratio = {rank: float(np.median(found)) for rank, found in sums.items()}
    worst = max(ratio, key=lambda rank: (ratio[rank], -rank))
    if everywhere(tables, graph, worst) >= 1 + (ratio[worst] - 1) / 2:
        return None
    mine = (graph.nodes.rank == worst) & (graph.nodes.kind == NodeKind.COMPUTE)
    return Uneven(worst, ratio[worst], longest(graph, mine))


def everywhere(tables: TableSet, graph: Graph, rank: int) -> float:
    """Give how much longer a rank takes than its groups' median even in the tenth where it compares best.

    Its work is told apart by the calls of its groups between which it lies, and by op and shapes. Where it is in no
    group that shares work, it cannot be told from one that has more to do: infinity.
    """
    least = float("inf")
    for axis in SHARED:
        found = [each for each in shares(graph, axis) if rank in each.ranks]
        if found:
            pieces = [_best_tenth(each.work, each.ranks.index(rank)) for each in found]
            least = min(least, float(np.median(pieces)), _by_shape(tables, graph, found[0].ranks, rank))
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
    """Give the ratio of one row to the median row in the columns where it is least, a tenth of the median's sum."""
    own, usual = work[place], np.median(work, axis=0)
    known = usual > 0
    if not known.any():
        return 1.0
    ratio, weight = own[known] / usual[known], usual[known]
    order = np.argsort(ratio, kind="stable")
    reached = np.searchsorted(np.cumsum(weight[order]), BEST * weight.sum())
    return float(ratio[order][min(int(reached), len(order) - 1)])
