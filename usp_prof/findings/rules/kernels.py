"""Rules on kernels: ops far below the device's peak, sizes that waste tiles, an optimizer of many small kernels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.analyses import kernels
from usp_prof.analyses.measures.kernel_tally import OpStat
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest, slowest_step
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.tables.events.arguments import recorded_list
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.compute import of_op, shape_word, updates

LEAST_OP_SHARE = 0.1
LOW_EFFICIENCY = 0.3
REACHABLE_EFFICIENCY = 0.6


class SlowOp:
    """A large op is far below the roofline.

    What it finds
        The longest op below 30% of the roofline for its FLOPs and bytes, if it takes at least 10% of the compute and
        60% of the roofline would shorten the step by at least 3%. This is an opportunity, because the rate that a shape
        can reach is uncertain.

    Why it costs time
        Large products reach 60 to 80% of the roofline, and memory-bound ops the same share of the bandwidth.

    What to do
        Use another kernel (`torch.compile`, `F.scaled_dot_product_attention` with the flash backend, fused cross
        entropy), the right data type (no product in fp32, TF32 allowed), or a larger micro-batch.
        - torchtitan: `compile.enable = true`, `training.mixed_precision_param = "bfloat16"`.
        - Megatron-LM: `--use-flash-attn`, `--cross-entropy-loss-fusion`, `--bf16`.
        - nanotron: `model.dtype: bfloat16`.
        - DeepSpeed: `"bf16": {"enabled": true}`.
        - our trainer: `--compile`, `--dtype bf16`.

    How the gain is predicted
        The run is replayed with this op at 60% of the roofline (`op_faster`): an upper limit.

    When it is wrong
        If the shape cannot be computed faster, such as a single row or odd sizes (`usp-prof explain wasted-tiles`).
    """

    CODE = RuleCode.SLOW_OP
    TITLE = "A large op is far below the roofline"
    NEEDS = (Input.SHAPES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding for the longest op that is far below the roofline."""
        work = kernels.compute(tables)
        slow = [op for op in work.ops if work.on_gpu and op.family and op.efficiency < LOW_EFFICIENCY]
        for op in slow[:1]:  # sorted by time; only the first is reported
            share = op.time_ns / max(work.total_ns, 1)
            if share < LEAST_OP_SHARE:
                return
            graph, word = graph_of(tables), shape_word(op.dims)
            yield Draft(
                f"{op.name} takes {100 * share:.0f}% of compute at {100 * op.efficiency:.0f}% of the roofline, "
                f"of which {100 * REACHABLE_EFFICIENCY:.0f}% is reachable",
                {"op": op.name, "dims": word.rstrip(".")},  # arguments that are not tensors have no shape
                {
                    "share_of_compute": share,
                    "efficiency": op.efficiency,
                    "bound": op.bound,
                    "calls": op.calls,
                    **longest(graph, of_op(graph, tables, op.name, word)),
                },
                Edit("op_faster", f"{REACHABLE_EFFICIENCY / op.efficiency:.3g}", (("dims", word), ("op", op.name))),
                f"Try another kernel for {op.name}, another data type, or a larger micro-batch",
                least_gain=0.03,
                rows=proof.largest(
                    "ops", f"{proof.equals('name', op.name)} AND {proof.equals('input_dims', op.dims)}", "dur_ns"
                ),
                opportunity=True,
                basis=Basis.BOUND,
                settings={"torchtitan": "compile.enable", "our trainer": "--compile"},
            )


ALIGNED = 8
TILE = 128
EMPTY_SHARE = 0.1
LEAST_SHARE = 0.02
FASTER = 1.1


class WastedTiles:
    """Matrix products have sizes that waste tiles.

    What it finds
        Matrix products on a GPU with a size (vocabulary, head, hidden) that is not a multiple of 8 elements, or leaves
        more than 10% of its last tile of 128 empty. They must take at least 2% of the compute, and the efficiency of
        products with full tiles must shorten the step by at least 2%.

    Why it costs time
        Matrix cores work on tiles. A size that is not a multiple of 16 bytes prevents fast loads and often the use of
        matrix cores. A half-empty tile takes as long as a full one.

    What to do
        Pad to a multiple of 128 (64 for small models). Start with the vocabulary: 50257 becomes 50304.
        - torchtitan: pad `vocab_size` in the model's arguments.
        - Megatron-LM: `--make-vocab-size-divisible-by 128`.
        - nanotron: `model.make_vocab_size_divisible_by`.
        - DeepSpeed: the model's configuration (`model.resize_token_embeddings(n, pad_to_multiple_of=128)`).
        - our trainer: `vocab` in the model's `config.json`.

    How the gain is predicted
        The run is replayed with these products at the median efficiency of products with full tiles (`op_faster`):
        modeled.

    When it is wrong
        If the product is memory-bound, or small for other reasons than its shape.
    """

    CODE = RuleCode.WASTED_TILES
    TITLE = "Matrix products have sizes that waste tiles"
    NEEDS = (Input.SHAPES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare products of odd sizes with products of full tiles."""
        work = kernels.compute(tables)
        products = [
            op for op in work.ops if work.on_gpu and op.family == "matrix product" and np.isfinite(op.efficiency)
        ]
        full_tiles = [op for op in products if not _wasteful(op)]
        if not full_tiles:
            return
        median_efficiency = float(np.median([op.efficiency for op in full_tiles]))
        sizes = {size for op in products if (size := _wasteful(op))}
        for size in sorted(sizes):
            of_size = [op for op in products if _wasteful(op) == size]
            time = sum(op.time_ns for op in of_size)
            share, efficiency = time / max(work.total_ns, 1), sum(op.ideal_ns for op in of_size) / max(time, 1)
            if share < LEAST_SHARE or median_efficiency < FASTER * efficiency:
                continue
            graph, names = graph_of(tables), sorted({op.name for op in of_size})
            yield Draft(
                f"Products with a size of {size} reach {100 * efficiency:.0f}% of the roofline, "
                f"full tiles {100 * median_efficiency:.0f}%",
                {"size": size},
                {
                    "share_of_compute": share,
                    "efficiency": efficiency,
                    "usual_efficiency": median_efficiency,
                    "ops": ", ".join(names),
                    **longest(graph, of_op(graph, tables, names[0], size=str(size))),
                },
                Edit("op_faster", f"{median_efficiency / efficiency:.3g}", (("op", names[0]), ("size", str(size)))),
                f"Pad {size} to {-(-size // TILE) * TILE}",
                basis=Basis.MODELLED,
                rows=proof.largest(
                    "ops", f"{proof.equals('name', names[0])} AND contains(input_dims, '{size}')", "dur_ns"
                ),
                settings={"Megatron-LM": "--make-vocab-size-divisible-by"},
            )


def _wasteful(op: OpStat) -> int:
    """Return the largest size that wastes tiles, or 0. Token counts are not checked: the model does not set them."""
    sizes = {size for shape in _shapes(op.dims) for size in shape[-2:] if size >= TILE}
    odd = [size for size in sizes if size % ALIGNED or -size % TILE > EMPTY_SHARE * size]
    return max(odd, default=0)


def _shapes(dims: str) -> list[list[int]]:
    shapes = recorded_list(dims)
    return [shape for shape in shapes if isinstance(shape, list) and all(isinstance(size, int) for size in shape)]


MANY = 50


class UnfusedOptimizer:
    """The optimizer runs as many small kernels.

    What it finds
        Device traces with at least 50 elementwise kernels per step in the update of an optimizer that has a fused form
        (Adam, AdamW, SGD, Adagrad, RMSprop, Lion and similar), if one launch would shorten the step by at least 2%. A
        fused optimizer needs a few kernels, a loop over parameters about a dozen per parameter. Matrix products,
        collectives, norms and copies inside the optimizer's mark are not counted.

    Why it costs time
        The kernels are shorter than their launches, so the device waits for the host once per step on every rank.

    What to do
        Use the fused implementation: `torch.optim.AdamW(fused=True)`.
        - torchtitan: `optimizer.implementation = "fused"`.
        - Megatron-LM: install Apex or Transformer Engine; their fused Adam is used automatically.
        - nanotron: `optimizer.optimizer_factory.torch_adam_is_fused: true`.
        - DeepSpeed: optimizer `Adam` with `torch_adam: false` (`FusedAdam`).
        - our trainer: fused by default (`--adamw`).

    How the gain is predicted
        The run is replayed with these kernels back to back and no host time between their launches (`fused_optimizer`):
        modeled. The kernels' own time stays, although fused kernels read memory less often.

    When it is wrong
        If elementwise kernels inside the optimizer's mark do other work, such as scaling gradients or averaging
        weights.
    """

    CODE = RuleCode.UNFUSED_OPTIMIZER
    TITLE = "The optimizer runs as many small kernels"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if the optimizer update has many elementwise kernels."""
        graph = graph_of(tables)
        update, _ = updates(graph, tables)
        is_update = update & (graph.nodes.step >= 0)
        steps = len(np.unique(np.stack([graph.nodes.rank[is_update], graph.nodes.step[is_update]]), axis=1).T)
        if steps and is_update.sum() / steps >= MANY:
            yield Draft(
                f"The optimizer update runs as {is_update.sum() / steps:.0f} kernels per step",
                {},
                {
                    "kernels_per_step": float(is_update.sum() / steps),
                    "kernel_ns": int(graph.nodes.duration[is_update].sum()),
                }
                | dict(slowest_step(graph, is_update)),
                Edit("fused_optimizer"),
                "Use the optimizer's fused implementation",
                basis=Basis.MODELLED,
                rows=proof.heaviest(graph, is_update),
                settings={
                    "torch": "fused=True",
                    "torchtitan": "optimizer.implementation",
                    "nanotron": "optimizer.optimizer_factory.torch_adam_is_fused",
                },
            )
