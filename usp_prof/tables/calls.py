"""Which parts belong to one call? Collectives matched over ranks, on aligned clocks."""

from __future__ import annotations

from usp_prof.model.schema import STEP, Schema, Scope, flag, integer, text

SCHEMA = Schema(
    "calls",
    "The same operation on all members of a group: group and sequence number, with arrival and end on aligned clocks.",
    (
        integer("call", "Number of the call, by first arrival."),
        text("op", "Operation."),
        text("group", "Key of the group."),
        text("axis", "Parallel axis."),
        integer("sequence", "Sequence number, recorded or counted."),
        text("matched_by", "sequence, order (counted from the end), or p2p."),
        integer("members", "Members whose part was read."),
        integer("group_size", "Members that the group has."),
        flag("complete", "All members' parts were read."),
        integer("bytes", "Bytes of the operation (largest in or out of a member).", "bytes"),
        integer("first_ns", "First member's arrival, aligned.", "ns"),
        integer("last_ns", "Last member's arrival, aligned.", "ns"),
        integer("end_ns", "Last member's end, aligned.", "ns"),
        integer("late_rank", "The rank that arrived last; -1 when tied within the clock's residual."),
        integer("transfer_ns", "From last arrival to the end.", "ns"),
        integer("wait_ns", "Sum over members of the time until the last arrived.", "ns"),
        flag("inter_node", "Members lie on several hosts."),
        STEP,
    ),
    Scope.RUN,
)

PARTS = Schema(
    "call_parts",
    "Which part of which rank belongs to which call.",
    (
        integer("call", "Number of the call."),
        integer("rank", "Rank."),
        integer("part", "Row of `collectives` of that rank."),
        integer("wait_ns", "Until the last member arrived; -1 when the call is not complete.", "ns"),
        integer("transfer_ns", "After it; -1 when the call is not complete.", "ns"),
    ),
    Scope.RUN,
)
