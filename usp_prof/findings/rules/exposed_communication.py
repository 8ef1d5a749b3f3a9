"""Rules on exposed communication: gradients, weight gathers and tensor-parallel collectives."""

from __future__ import annotations

from collections.abc import Iterable

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.replay.build import graph_of
from usp_prof.tables.table_set import TableSet

REDUCES = ("all_reduce", "reduce_scatter")


class ExposedGradientSync:
    """Gradient synchronization is exposed.

    What it finds
        Exposed communication of the data-parallel axes (`dp`, `dp_replicate`, `dp_shard`), if overlapping it with the
        backward pass would shorten the step by at least 4%. A small rest is exposed at the end of every backward pass.

    Why it costs time
        The gradient of a layer is ready long before the backward pass ends. Synchronizing at the end leaves the device
        idle.

    What to do
        Overlap gradient synchronization with the backward pass.
        - DDP: buckets (`bucket_cap_mb`), and no `no_sync` around the last micro-batch.
        - FSDP2, torchtitan: overlaps by default; look for an explicit wait or reshard.
        - Megatron-LM: `--overlap-grad-reduce`, `--overlap-param-gather`.
        - DeepSpeed: `overlap_comm: true`.
        - nanotron: overlaps with its bucketed gradient accumulator.
        - our trainer: overlaps unless `--fault unoverlapped` is set; `--bucket-mb`.

    How the gain is predicted
        The run is replayed with each reduction starting when its share of the last backward pass is done, and only the
        optimizer waiting for it (`sync_overlapped`). What backward cannot hide stays exposed.

    When it is wrong
        If communication slows the compute that it overlaps with (shared links, few SMs), or if gradients are needed
        early.
    """

    CODE = RuleCode.EXPOSED_GRADIENT_SYNC
    TITLE = "Gradient synchronization is exposed"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding per data-parallel axis that reduces gradients."""
        graph = graph_of(tables)
        for axis in DATA_AXES:
            rows = graph.on_axis(str(axis))
            if not rows.any():
                continue
            if not _reductions(tables, str(axis)):
                continue
            yield Draft(
                f"Gradient synchronization on {axis} is exposed",
                {"axis": str(axis)},
                {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
                | dict(longest(graph, rows, graph.transfer)),
                Edit("sync_overlapped", places=(("axis", str(axis)),)),
                "Overlap gradient synchronization with the backward pass",
                least_gain=0.04,
                covers=(RuleCode.SLOW_LINK,),
                rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op IN {REDUCES}", "dur_ns"),
                settings={
                    "Megatron-LM": "--overlap-grad-reduce",
                    "DeepSpeed": "overlap_comm",
                    "DDP": "bucket_cap_mb",
                },
            )


def _reductions(tables: TableSet, axis: str) -> int:
    """Count the operations that reduce gradients on an axis."""
    collectives = (tables.columns("collectives", rank) for rank in tables.ranks)
    return sum(int((of_rank.matches("axis", axis) & of_rank.matches("op", *REDUCES)).sum()) for of_rank in collectives)


GATHER_AXES = (Axis.DP, Axis.DP_SHARD)
FEWEST_GATHERS = 2


class ExposedGathers:
    """Gathers of sharded weights are exposed.

    What it finds
        ZeRO-3 or FSDP runs that wait for all-gathers in forward and backward, if requesting each one while the previous
        layer computes would shorten the step by at least 4%. The first gather of a pass cannot be hidden.

    Why it costs time
        A layer cannot start before its weights arrive. A gather requested at that moment adds its whole time to the
        step, in forward and, if weights are freed in between, again in backward.

    What to do
        Gather earlier and free weights later.
        - torchtitan: FSDP2 prefetches in forward; `parallelism.fsdp_reshard_after_forward = "never"` drops the second
          gather if memory allows.
        - Megatron-LM: `--overlap-param-gather` with `--use-distributed-optimizer`.
        - DeepSpeed: `overlap_comm: true`, larger `stage3_prefetch_bucket_size` and `stage3_max_reuse_distance`.
        - nanotron: has no ZeRO-3; use `optimizer.zero_stage: 1`.
        - our trainer: `--prefetch`, or `--zero 2`.

    How the gain is predicted
        The run is replayed with each gather requested when the previous layer starts (`prefetch=on`).

    When it is wrong
        If the weights of two layers do not fit in memory, or if gathers slow the compute that they overlap with.
    """

    CODE = RuleCode.EXPOSED_GATHERS
    TITLE = "Gathers of sharded weights are exposed"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if weights are gathered inside forward and backward."""
        gathers = {axis: sum(_inside(tables, rank, str(axis)) for rank in tables.ranks) for axis in GATHER_AXES}
        axis = max(GATHER_AXES, key=lambda candidate: gathers[candidate])
        if gathers[axis] < FEWEST_GATHERS * len(tables.ranks):
            return
        graph = graph_of(tables)
        steps = max(len(tables.columns("steps", rank)) for rank in tables.ranks)
        yield Draft(
            f"Weight gathers on {axis} are exposed",
            {"axis": str(axis)},
            {
                "gathers_per_rank_and_step": gathers[axis] / steps / len(tables.ranks),
                **longest(graph, graph.on_axis(str(axis)), graph.transfer),
            },
            Edit("prefetch", "on"),
            "Gather each layer's weights while the previous layer computes. The first gather of each pass and "
            "gathers longer than a layer's compute stay exposed",
            least_gain=0.04,
            covers=(RuleCode.SLOW_LINK,),
            rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op = 'all_gather'", "dur_ns"),
            settings={
                "torchtitan": "parallelism.fsdp_reshard_after_forward",
                "DeepSpeed": "stage3_prefetch_bucket_size",
                "Megatron-LM": "--overlap-param-gather",
            },
        )


def _inside(tables: TableSet, rank: int, axis: str) -> int:
    """Count a rank's gathers in forward and backward; gathers after the optimizer belong to ZeRO-1 and -2."""
    parts = tables.columns("collectives", rank)
    rows = parts.matches("axis", axis) & parts.matches("op", "all_gather")
    return int((rows & parts.matches("phase", "forward", "backward")).sum())


class ExposedTensorParallel:
    """Tensor-parallel communication is exposed.

    What it finds
        Exposed communication of the axis `tp` (including sequence parallelism), if hiding it would shorten the step by
        at least 5%. This is an opportunity: most implementations expose these collectives.

    Why it costs time
        Every layer needs two collectives in forward and two in backward, and the next product waits for each result.

    What to do
        Split products and collectives into pieces that overlap, or use fewer tensor-parallel ranks.
        - torchtitan: `parallelism.enable_async_tensor_parallel = true` with `compile.enable = true`.
        - Megatron-LM: `--tp-comm-overlap` with `--sequence-parallel` (needs Transformer Engine).
        - nanotron: `parallelism.tp_linear_async_communication: true` with `tp_mode: REDUCE_SCATTER`.
        - DeepSpeed: lower the tensor-parallel degree of the model.
        - our trainer: `--tp-async`, or a lower `--tp`.

    How the gain is predicted
        The run is replayed with only the next step waiting for this axis (`comm_hidden`): an upper limit, because the
        first and last piece of every collective stay exposed.

    When it is wrong
        If the pieces of the products are too small to fill the device, which is common.
    """

    CODE = RuleCode.EXPOSED_TENSOR_PARALLEL
    TITLE = "Tensor-parallel communication is exposed"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if the axis communicates."""
        graph = graph_of(tables)
        rows = graph.on_axis(Axis.TP)
        if rows.any():
            yield Draft(
                "Tensor-parallel communication is exposed",
                {"axis": str(Axis.TP)},
                {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
                | dict(longest(graph, rows, graph.transfer)),
                Edit("comm_hidden", places=(("axis", str(Axis.TP)),)),
                "Overlap chunks of matrix products with collectives, or lower the tensor-parallel degree",
                least_gain=0.05,
                rows=proof.heaviest(graph, rows, graph.transfer),
                opportunity=True,
                basis=Basis.BOUND,
                settings={
                    "torchtitan": "parallelism.enable_async_tensor_parallel",
                    "Megatron-LM": "--tp-comm-overlap",
                    "nanotron": "parallelism.tp_linear_async_communication",
                },
            )
