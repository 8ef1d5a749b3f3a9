"""The optimizer runs as many small kernels.

What it finds
    Device traces with 50 or more elementwise kernels a step in the update of an optimizer that has a fused form (Adam,
    AdamW, SGD, Adagrad, RMSprop, Lion and their kin, by the class in torch's mark), where one launch would shorten the
    step by 2 % or more. A fused optimizer needs a few, a loop over parameters a dozen for each of them. Matrix products
    (Muon's Newton-Schulz iterations), collectives, norms and copies inside the mark are neither counted nor fused.

Why it costs time
    The kernels are shorter than their launches, so that the device waits for the host, once a step on every rank.

What to do
    Fuse it: `torch.optim.AdamW(fused=True)`. torchtitan: `optimizer.implementation = "fused"`; Megatron-LM: install
    Apex or Transformer Engine, whose fused Adam it takes by itself; nanotron:
    `optimizer.optimizer_factory.torch_adam_is_fused: true`; DeepSpeed: optimizer `Adam` with `torch_adam: false`
    (`FusedAdam`); our trainer: always fused.

How the gain is predicted
    The run is replayed with these kernels one right after another, and no host time between their launches
    (`fused_optimizer`). The kernels' own time stays, though fused ones read memory less often.

When it is wrong
    When elementwise kernels inside the optimizer's mark are other work (scaling of gradients, averaging of weights).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import slowest_step
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.optimizer import updates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "unfused-optimizer"
TITLE = "The optimizer runs as many small kernels"
NEEDS = (Input.LAUNCHES,)
MANY = 50


def look(tables: TableSet) -> Iterable[Draft]:
    """Count the elementwise kernels of the optimizer's update."""
    graph = graph_of(tables)
    update, _ = updates(graph, tables)
    kernels = update & (graph.nodes.step >= 0)
    steps = len(np.unique(np.stack([graph.nodes.rank[kernels], graph.nodes.step[kernels]]), axis=1).T)
    if steps and kernels.sum() / steps >= MANY:
        yield Draft(
            f"the optimizer's update runs as {kernels.sum() / steps:.0f} kernels a step",
            {},
            {"kernels_per_step": float(kernels.sum() / steps), "kernel_ns": int(graph.nodes.duration[kernels].sum())}
            | dict(slowest_step(graph, kernels)),
            Edit("fused_optimizer"),
            "fuse the optimizer",
            rows=proof.heaviest(graph, kernels),
            settings={
                "torch": "fused=True",
                "torchtitan": "optimizer.implementation",
                "nanotron": "optimizer.optimizer_factory.torch_adam_is_fused",
            },
        )
