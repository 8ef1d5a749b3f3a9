"""An op that takes much of the compute is far below what the device can do.

What it finds
    Of the ops below 30 % of what the roofline allows for their FLOP and bytes, the one that takes most time, when that
    is a tenth of the compute or more and 60 % would shorten the step by 3 % or more. It is an opportunity: which rate a
    shape can reach is not known for certain.

Why it costs time
    Large products reach 60 to 80 % of the roofline, memory-bound ops as much of the bandwidth.

What to do
    Another kernel: a fused one (`torch.compile`, `F.scaled_dot_product_attention` with the flash backend,
    fused cross entropy), the right dtype (a product left in fp32, TF32 not allowed), a larger micro-batch. torchtitan:
    `compile.enable = true`, `training.mixed_precision_param = "bfloat16"`; Megatron-LM: `--use-flash-attn`,
    `--cross-entropy-loss-fusion`, `--bf16`; nanotron: `model.dtype: bfloat16`; DeepSpeed: `"bf16": {"enabled": true}`;
    our trainer: `--compile`, `--dtype bf16`.

How the gain is predicted
    The run is replayed with this op at 60 % of the roofline (`op_faster`): a bound.

When it is wrong
    When the shape cannot be computed faster (one row, odd sizes: see `usp-prof explain wasted-tiles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses import kernels
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.operations import of_op, shape_word

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "slow-op"
TITLE = "An op that takes much of the compute is far below what the device can do"
NEEDS = (Input.SHAPES,)
LEAST_SHARE, LOW, REACHED = 0.1, 0.3, 0.6


def look(tables: TableSet) -> Iterable[Draft]:
    """List the top ops that are far below the roofline."""
    found = kernels.compute(tables)
    slow = [op for op in found.ops if found.on_gpu and op.family and op.efficiency < LOW]
    for op in slow[:1]:  # ops are sorted by time: the others can wait until this one is looked at
        share = op.time_ns / max(found.total_ns, 1)
        if share < LEAST_SHARE:
            return
        graph, word = graph_of(tables), shape_word(op.dims)
        yield Draft(
            f"{op.name} takes {100 * share:.0f} % of compute at {100 * op.efficiency:.0f} % of the roofline",
            {"op": op.name, "dims": word.rstrip(".")},  # what is no tensor has no shape
            {
                "share_of_compute": share,
                "efficiency": op.efficiency,
                "bound": op.bound,
                "calls": op.calls,
                **longest(graph, of_op(graph, tables, op.name, word)),
            },
            Edit("op_faster", f"{REACHED / op.efficiency:.3g}", (("dims", word), ("op", op.name))),
            "another kernel, another dtype, or a larger micro-batch",
            least_gain=0.03,
            rows=proof.largest(
                "ops", f"{proof.equals('name', op.name)} AND {proof.equals('input_dims', op.dims)}", "dur_ns"
            ),
            opportunity=True,
            basis=Basis.BOUND,
            settings={"torchtitan": "compile.enable", "our trainer": "--compile"},
        )
