"""Parts of a sequence get unequal work.

What it finds
    Context-parallel groups in which the work of one rank is at least 1.08 times the mean of its group, between the
    group's exchanges and over the whole recording, where equal work would shorten the step by 3 % or more. With a
    causal mask and contiguous parts the last of n ranks does nearly twice the mean of the attention.

Why it costs time
    The group waits in every exchange for the rank with the most work.

What to do
    Cut the sequence so that each rank holds an early and a late piece (zigzag). torchtitan: PyTorch's context parallel
    balances by itself, unless `torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance` is
    off; Megatron-LM: cuts so by itself, look at loaders that cut before it; nanotron: has no context parallelism of its
    own, cut in the collator; DeepSpeed: Ulysses (`DistributedAttention`) shares heads instead and is even; our trainer:
    `--cp-layout zigzag`, or `--cp-method ulysses`.

How the gain is predicted
    The run is replayed with each rank of a group doing the mean of the group's work between its exchanges
    (`even_work=cp`).

When it is wrong
    When documents of unequal lengths are packed, so that the mask decides who has how much: then zigzag is not even
    either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

CODE = "uneven-sequence"
TITLE = "Parts of a sequence get unequal work"
NEEDS = (Input.ALL_RANKS,)
UNEVEN = 1.08


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
            rows=proof.compute_by_rank(),
            settings={"our trainer": "--cp-layout zigzag"},
        )
