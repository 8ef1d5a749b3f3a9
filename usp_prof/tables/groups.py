"""Which process groups did each rank have, and which axis is each?"""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, integer, text

SCHEMA = Schema(
    "groups",
    "Process groups seen from each rank. A group is identified by its name and its ranks together.",
    (
        RANK,
        text("group", "Key: name@ranks."),
        text("name", "Name as recorded."),
        text("description", "Description as recorded."),
        text("backend", "Backend as recorded."),
        integer("size", "Number of members."),
        text("ranks", "Members' global ranks, comma separated; empty when unknown."),
        text("axis", "Parallel axis."),
        text("axis_source", "description, manifest, ranks, mark, inferred or none."),
    ),
)
