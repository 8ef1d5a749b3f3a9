"""Many small collectives pay for latency instead of bandwidth.

What it finds
    An axis of data or expert parallelism with at least ten collectives of less than 1 MB in a step whose transfer takes
    so much longer than their bytes at the bandwidth of the axis' large collectives (without such, than one latency for
    all) that bucketing them would shorten the step by 2 % or more.

Why it costs time
    Below about a megabyte the time of a collective hardly depends on its size: it is launches, hops and handshakes.

What to do
    Put them together: larger DDP buckets (`bucket_cap_mb`), FSDP units of whole blocks, DeepSpeed
    `reduce_bucket_size` and `allgather_bucket_size`, Megatron-LM `--ddp-bucket-size`; send metadata with the data.
    torchtitan: wrap whole blocks (its default), nanotron: its accumulator holds one bucket; our trainer: `--bucket-
    mb`.

How the gain is predicted
    The run is replayed with each small transfer at the median bandwidth of the axis' large ones (`bucketed`): modelled,
    since no trace holds the bucketed call. Where an axis has no large ones but messages of very different sizes take
    alike, the calls of a megabyte together pay one latency.

When it is wrong
    When each small collective is needed right away and no other is ready to go along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.topology import Axis
from usp_prof.tables import calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "small-messages"
TITLE = "Many small collectives pay for latency"
AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.EP)
"""Tensor and context parallelism need each message before the next can be made: there is nothing to bucket."""
SMALL_BYTES = 1_000_000
FEWEST = 10


def look(tables: TableSet) -> Iterable[Draft]:
    """Count each axis' small collectives."""
    found = calls.of(tables).columns()
    steps = max((len(tables.columns("steps", rank)) for rank in tables.ranks), default=0)
    for axis in AXES:
        rows = found.matches("axis", str(axis)) & (found["bytes"] > 0) & (found["bytes"] < SMALL_BYTES)
        number = int(rows.sum()) / max(steps, 1)
        if number < FEWEST:
            continue
        yield Draft(
            f"{number:.0f} small {axis} collectives in a step",
            {"axis": str(axis)},
            {"calls_per_step": number, "bytes": int(found["bytes"][rows].sum())},
            Edit("bucketed", str(SMALL_BYTES), (("axis", str(axis)),)),
            "put them into buckets",
            basis=Basis.MODELLED,
            rows=proof.largest(
                "calls", f"{proof.equals('axis', axis)} AND bytes > 0 AND bytes < {SMALL_BYTES}", "transfer_ns"
            ),
            settings={"DDP": "bucket_cap_mb", "DeepSpeed": "reduce_bucket_size", "Megatron-LM": "--ddp-bucket-size"},
        )
