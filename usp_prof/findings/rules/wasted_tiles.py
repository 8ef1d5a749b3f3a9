"""Matrix products have sizes that waste tiles.

What it finds
    Matrix products on a GPU with a size (vocabulary, head, hidden) that is no multiple of 8 elements, or that leaves
    more than a tenth of its last tile of 128 empty, with at least 2 % of the compute, where the efficiency of the
    products with whole tiles would shorten the step by 2 % or more.

Why it costs time
    Matrix cores work on tiles. A size that is no multiple of 16 bytes keeps fast loads and often the matrix cores from
    being used at all; a tile that is half empty takes as long as a full one.

What to do
    Pad to a multiple of 128 (64 on small models): vocabulary first, 50257 to 50304. torchtitan: pad `vocab_size` in the
    model's arguments; Megatron-LM: `--make-vocab-size-divisible-by 128`; nanotron:
    `model.make_vocab_size_divisible_by`; DeepSpeed: the model's own configuration
    (`model.resize_token_embeddings(n, pad_to_multiple_of=128)`); our trainer: `vocab` in the model's `config.json`.

How the gain is predicted
    The run is replayed with these products at the median efficiency of those with whole tiles (`op_faster`): modelled.

When it is wrong
    When the product is bound by memory, or is small for other reasons than its shape.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import kernels
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.operations import of_op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.measures.kernel_tally import OpStat
    from usp_prof.tables.table_set import TableSet

CODE = "wasted-tiles"
TITLE = "Matrix products have sizes that waste tiles"
NEEDS = (Input.SHAPES,)
ALIGNED, TILE, EMPTY_SHARE = 8, 128, 0.1
LEAST_SHARE = 0.02
FASTER = 1.1


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare products of odd sizes with those of whole tiles."""
    found = kernels.compute(tables)
    products = [op for op in found.ops if found.on_gpu and op.family == "matrix product" and np.isfinite(op.efficiency)]
    whole = [op for op in products if not _wasteful(op)]
    if not whole:
        return
    usual = float(np.median([op.efficiency for op in whole]))
    sizes = {size for op in products if (size := _wasteful(op))}
    for size in sorted(sizes):
        mine = [op for op in products if _wasteful(op) == size]
        time = sum(op.time_ns for op in mine)
        share, efficiency = time / max(found.total_ns, 1), sum(op.ideal_ns for op in mine) / max(time, 1)
        if share < LEAST_SHARE or usual < FASTER * efficiency:
            continue
        graph, names = graph_of(tables), sorted({op.name for op in mine})
        yield Draft(
            f"products with a size of {size} reach {100 * efficiency:.0f} %, whole tiles {100 * usual:.0f} %",
            {"size": size},
            {
                "share_of_compute": share,
                "efficiency": efficiency,
                "usual_efficiency": usual,
                "ops": ", ".join(names),
                **longest(graph, of_op(graph, tables, names[0], size=str(size))),
            },
            Edit("op_faster", f"{usual / efficiency:.3g}", (("op", names[0]), ("size", str(size)))),
            f"pad {size} to {-(-size // TILE) * TILE}",
            basis=Basis.MODELLED,
            rows=proof.largest("ops", f"{proof.equals('name', names[0])} AND contains(input_dims, '{size}')", "dur_ns"),
            settings={"Megatron-LM": "--make-vocab-size-divisible-by"},
        )


def _wasteful(op: OpStat) -> int:
    """Give the size that wastes tiles most; 0 where none does. Numbers of tokens are not the model's to choose."""
    sizes = {size for shape in _shapes(op.dims) for size in shape[-2:] if size >= TILE}
    odd = [size for size in sizes if size % ALIGNED or -size % TILE > EMPTY_SHARE * size]
    return max(odd, default=0)


def _shapes(dims: str) -> list[list[int]]:
    try:
        read = json.loads(dims)
    except ValueError:
        return []
    return [shape for shape in read if isinstance(shape, list) and all(isinstance(size, int) for size in shape)]
