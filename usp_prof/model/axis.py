"""Which parallel axes are there, and what may a communication be called by?"""

from __future__ import annotations

from enum import StrEnum


class Axis(StrEnum):
    """A parallel axis of the mesh, or what a group is when it is none."""

    DP = "dp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    TP = "tp"
    CP = "cp"
    PP = "pp"
    EP = "ep"
    WORLD = "world"
    UNKNOWN = "unknown"


class AxisSource(StrEnum):
    """How a group came to its axis, most trusted first (see the definitions)."""

    DESCRIPTION = "description"
    MANIFEST = "manifest"
    RANKS = "ranks"
    MARK = "mark"
    INFERRED = "inferred"
    NONE = "none"


PARALLEL_AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.TP, Axis.CP, Axis.PP, Axis.EP)
"""The axes of a mesh, in the order in which screens show them."""
