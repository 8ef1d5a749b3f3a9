"""Which parallel axis does a name stand for? Descriptions of groups, and marks around a communication, as data."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.tracks import nest
from usp_prof.contract import parse_mark
from usp_prof.model.axis import Axis
from usp_prof.tables.frame import MARKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.frame import EventFrame

    Ints = NDArray[np.int64]

# What frameworks call their groups, in `group_desc` or as mesh dimensions. The first pattern found decides. A group
# over a product of axes (fsdp = dp_shard x cp) counts to the axis whose traffic it carries.
_DESCRIPTIONS = (
    # PyTorch DeviceMesh and torchtitan, with or without "mesh_"; our recorder writes the same
    (Axis.DP_REPLICATE, r"^(mesh_)?(dp_replicate|replicate|hsdp_replicate|ddp)$"),
    (Axis.DP_SHARD, r"^(mesh_)?(dp_shard(_cp|_mod_ep|_in_ep)*|fsdp|efsdp|edp_shard|shard|zero[123]?)$"),
    (Axis.DP, r"^(mesh_)?(dp|data|batch|dp_cp|dp_mod_ep|loss|edp)$"),
    (Axis.TP, r"^(mesh_)?(tp|etp|sp|tensor|model|tensor_parallel)$"),
    (Axis.CP, r"^(mesh_)?(cp|context|ring|ulysses|seq|sequence)$"),
    (Axis.PP, r"^(mesh_)?(pp|pipe|pipeline|stage)$"),
    (Axis.EP, r"^(mesh_)?(ep|expert|moe)$"),
    # Megatron-LM and DeepSpeed
    (Axis.DP, r"(EXPERT_DATA_PARALLEL|DATA_PARALLEL|DATA_MODULO_EXPERT)|^(intra|inter)?_?dp(_|$)"),
    (Axis.EP, r"EXPERT_(MODEL_)?PARALLEL|EXPERT_TENSOR_AND_MODEL|^ep_|expert_parallel"),
    (Axis.CP, r"CONTEXT_PARALLEL|HIERARCHICAL_CONTEXT|^cp_|sequence_parallel_group"),
    (Axis.PP, r"PIPELINE_MODEL_PARALLEL|EMBEDDING_GROUP|^pp_|pipe_parallel"),
    (Axis.TP, r"TENSOR_MODEL_PARALLEL|MODEL_PARALLEL_GROUP|TENSOR_AND|EXPERT_TENSOR|^tp_|model_parallel"),
)
_COMPILED = tuple((axis, re.compile(pattern, re.IGNORECASE)) for axis, pattern in _DESCRIPTIONS)

_AREAS = {"dp": Axis.DP, "tp": Axis.TP, "cp": Axis.CP, "pp": Axis.PP, "ep": Axis.EP, "moe": Axis.EP}
# Ranges that libraries put around their own communication.
_LIBRARY_MARKS = (
    (Axis.DP_SHARD, re.compile(r"FSDP::|FullyShardedDataParallel\.|_ShardedGradScaler|ZeRO")),
    (Axis.DP, re.compile(r"DDP::|DistributedDataParallel\.(sync|reduc)|torch\.distributed\.ddp\.reducer")),
    (Axis.EP, re.compile(r"(deep_?ep|moe|expert).*(dispatch|combine)", re.IGNORECASE)),
    (Axis.PP, re.compile(r"PP:\d*(SEND|RECV)_[FB]")),
)


@cache
def axis_of_description(description: str) -> Axis:
    """Read a group's description; `unknown` when it says nothing, as "default_pg" and "undefined" do."""
    return next((axis for axis, pattern in _COMPILED if pattern.search(description)), Axis.UNKNOWN)


@cache
def axis_of_mark(name: str) -> Axis | None:
    """Read the axis of an annotation around a communication; `None` when it tells of none."""
    mark = parse_mark(name)
    if mark is not None:
        # A pipeline action encloses the whole forward pass: only its transfers are the pipeline's communication.
        if mark.area == "pp" and not mark.what.startswith(("send", "recv")):
            return None
        return _AREAS.get(mark.area)
    return next((axis for axis, pattern in _LIBRARY_MARKS if pattern.search(name)), None)


def axis_of_marks(frame: EventFrame, track: Ints, at: Ints) -> Ints:
    """Give the axis (place in `Axis`) of the innermost telling mark around each moment of a thread; -1 for none."""
    axes = [*Axis]

    def place(name: str) -> int:
        axis = axis_of_mark(name)
        return -1 if axis is None else axes.index(axis)

    rows = frame.rows(*MARKS)
    meaning = frame.by_name(rows, place, np.int64)
    rows, meaning = rows[meaning >= 0], meaning[meaning >= 0]
    if not len(rows):
        return np.full(len(at), -1, np.int64)
    inner = nest(frame.track[rows], frame.start[rows], frame.duration[rows]).innermost(track, at)
    return np.where(inner >= 0, meaning[inner], -1)
