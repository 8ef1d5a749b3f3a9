"""Which communication did this rank take part in? One rank's part of each collective, send and receive."""

from __future__ import annotations

from usp_prof.model.schema import DURATION, RANK, START, STEP, Schema, flag, integer, text

SCHEMA = Schema(
    "collectives",
    "One rank's part of each collective, send and receive; a part carried by no device event has its host range.",
    (
        RANK,
        integer("part", "Row number among this rank's parts, by start."),
        integer("event", "Event of the kernel (GPU) or gloo range (CPU); -1 when only the host range is known."),
        integer("op_event", "Event of the c10d op or record_param_comms; -1 when unknown."),
        text(
            "op",
            "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, "
            "recv, send_recv (batched), barrier or other.",
        ),
        text("library", "nccl, rccl, gloo, deepep, ..."),
        text("group", "Key of the group: name@ranks, or @ranks where no name is known; empty when unknown."),
        text("axis", "Parallel axis (dp, dp_replicate, dp_shard, tp, cp, pp, ep, world, unknown)."),
        text("axis_source", "description, manifest, ranks, mark, inferred or none."),
        integer("sequence", "Sequence number within the group and kind (collective or p2p), as recorded; else -1."),
        integer("group_size", "Number of members; -1 when unknown."),
        integer("in_bytes", "Bytes this rank put in; -1 when unknown.", "bytes"),
        integer("out_bytes", "Bytes this rank got out; -1 when unknown.", "bytes"),
        text("dtype", "Element type as PyTorch writes it."),
        integer("peer", "Global rank of the other side of a send or receive; -1 for none or unknown."),
        text("in_split", "Split sizes of an uneven all-to-all, as JSON text."),
        text("out_split", "Same for the output."),
        flag("asynchronous", "Issued with async_op."),
        text("lane", "Lane of the activity."),
        START,
        DURATION,
        STEP,
    ),
)
