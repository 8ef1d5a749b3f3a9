"""Axis names: the parallel axis of a group's description or a mark, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.contract import parse_mark
from usp_prof.model.topology import Axis
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame


@dataclass(frozen=True, slots=True)
class Described:
    """Contents of a group's description."""

    axis: Axis = Axis.UNKNOWN
    """Axis of the group's communication; unknown for a product that serves several."""
    sizes: bool = False
    """The group spans only its axis (and `cp`), so its size is that of the axis."""
    product: tuple[Axis, ...] = ()
    """The axes that the group spans, if they are several."""


_NOTHING = Described()

# Mesh dimensions of PyTorch's DeviceMesh, with or without the prefix "mesh_": torchtitan, accelerate, verl, this
# recorder. `fsdp`, `dp_cp` and `loss` contain whole context groups, by whose size the mesh divides them.
_DIMENSIONS = {
    Described(Axis.DP_REPLICATE, sizes=True): r"dp_replicate|replicate|hsdp_replicate|ddp",
    Described(Axis.DP_SHARD, sizes=True): r"dp_shard(_cp)?|fsdp|shard|zero[123]?",
    Described(Axis.DP_SHARD): r"dp_shard_(mod|in)_ep(_cp)?|efsdp|edp_shard|fsdp_reduce_scatter",
    Described(Axis.DP, sizes=True): r"dp|data|batch|dp_cp|loss(_mesh)?|data_parallel(_group)?",
    Described(Axis.DP): r"edp|dp_mod_ep",
    Described(Axis.TP, sizes=True): r"tp|tensor|model|(tensor|model|slice)_parallel(_group)?",
    Described(Axis.TP): r"etp",
    # A separate dimension "sp" is Ulysses' (accelerate, verl): sequence parallelism with tp has no own dimension.
    Described(Axis.CP, sizes=True): r"cp|sp|context|ring|ulysses|seq|sequence|(context|sequence)_parallel(_group)?",
    Described(Axis.PP, sizes=True): r"pp|pipe|pipeline|stage|(pipe|pipeline)_parallel(_group)?",
    Described(Axis.EP, sizes=True): r"ep|expert|moe|expert_parallel(_group)?",
    Described(Axis.WORLD): r"world",
}

# The groups of Megatron-Core's parallel_state (0.6 to 0.16), without the suffixes of copies (_GLOO, _AG, _L0).
_MEGATRON = {
    Described(Axis.DP, sizes=True): r"DATA_PARALLEL_GROUP(_WITH_CP)?",
    Described(Axis.DP): r"(INTRA|INTER)_PARTIAL_DATA_PARALLEL_GROUP(_WITH_CP)?|"
    r"((INTRA|INTER)_PARTIAL_)?EXPERT_DATA_PARALLEL_GROUP|DATA_MODULO_EXPERT_PARALLEL_GROUP(_WITH_CP)?|"
    r"HIERARCHICAL_(EXPERT_)?DATA_PARALLEL_GROUP(_WITH_CP)?|WEIGHT_GRADIENT_COMM_GROUP",
    Described(Axis.EP, sizes=True): r"EXPERT_(MODEL_)?PARALLEL_GROUP",
    # The dispatchers send tokens over the experts and their tensor-parallel ranks in one call.
    Described(Axis.EP, product=(Axis.TP, Axis.EP)): r"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP|"
    r"TENSOR_AND_EXPERT_PARALLEL_GROUP",
    Described(Axis.CP, sizes=True): r"CONTEXT_PARALLEL_GROUP",
    Described(Axis.CP): r"HIERARCHICAL_CONTEXT_PARALLEL_GROUP|HYBRID_DP_CP_GROUP_\d+",
    Described(Axis.PP, sizes=True): r"PIPELINE_MODEL_PARALLEL_GROUP",
    # The first and the last stage share the embedding's weights.
    Described(Axis.PP): r"(POSITION_)?EMBEDDING_GROUP",
    Described(Axis.TP, sizes=True): r"TENSOR_MODEL_PARALLEL_GROUP",
    Described(Axis.TP): r"EXPERT_TENSOR_PARALLEL_GROUP",
    Described(product=(Axis.TP, Axis.CP)): r"TENSOR_AND_CONTEXT_PARALLEL_GROUP",
    Described(product=(Axis.TP, Axis.DP)): r"TENSOR_AND_DATA_PARALLEL_GROUP",
    Described(product=(Axis.TP, Axis.DP, Axis.CP)): r"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP|AMAX_REDUCTION_GROUP",
    Described(product=(Axis.TP, Axis.PP)): r"MODEL_PARALLEL_GROUP",
    Described(product=(Axis.TP, Axis.EP, Axis.PP)): r"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP|"
    r"MODEL_AND_EXPERT_PARALLEL_GROUP|INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
}
_COMPILED = (
    *((described, re.compile(pattern)) for described, pattern in _MEGATRON.items()),
    *((described, re.compile(pattern, re.IGNORECASE)) for described, pattern in _DIMENSIONS.items()),
)
_COPY = re.compile(r"(_GLOO|_AG|_L\d+)+\Z")

_AREAS = {"dp": Axis.DP, "tp": Axis.TP, "cp": Axis.CP, "pp": Axis.PP, "ep": Axis.EP, "moe": Axis.EP}
# Ranges that libraries put around their own communication.
_LIBRARY_MARKS = (
    (Axis.DP_SHARD, re.compile(r"FSDP::|FullyShardedDataParallel\.|_ShardedGradScaler|ZeRO")),
    (Axis.DP, re.compile(r"DDP::|DistributedDataParallel\.(sync|reduc)|torch\.distributed\.ddp\.reducer")),
    (Axis.EP, re.compile(r"(deep_?ep|moe|expert).*(dispatch|combine)", re.IGNORECASE)),
    (Axis.PP, re.compile(r"PP:\d*(SEND|RECV)_[FB]")),
)


@cache
def described(description: str) -> Described:
    """Parse a group's description; "default_pg", "undefined" and unknown names contain no axis."""
    plain = _COPY.sub("", description.removeprefix("mesh_"))
    return next((meaning for meaning, pattern in _COMPILED if pattern.fullmatch(plain)), _NOTHING)


def axis_of_description(description: str) -> Axis:
    """Return the axis in a group's description; `unknown` if it has none."""
    return described(description).axis


# Autograd functions of libraries, which are host ops around their communication. Names that serve several axes
# (Megatron's and DeepSpeed's `_AllToAll`) are omitted.
_LIBRARY_FUNCTIONS = (
    # Megatron's tensor_parallel/mappings.py, cross_entropy.py and layers.py; nanotron's async linear layers
    (
        Axis.TP,
        (
            r"_(Copy|Reduce|Scatter|Gather)(To|From)(Tensor)?ModelParallelRegion|_VocabParallel\w*|"
            r"_(AllGatherFrom|ReduceScatterTo)TensorParallelRegion|_(Scatter|Gather|ReduceScatter)(To|From)SequenceParallelRegion|"
            r"LinearWith(GradAccumulationAndAsyncCommunication|FrozenWeight)|_(Column|Row)LinearAsyncCommunication\w*"
        ),
    ),
    # Transformer Engine, ring-flash-attention, DeepSpeed-Ulysses, long-context-attention
    (
        Axis.CP,
        r"AttnFuncWithCPAnd\w+|(ZigZag|Stripe)?RingFlashAttn(Varlen)?(KVPacked|QKVPacked)?Func|_?SeqAllToAll(3D|4D|5D)?",
    ),
)
_FUNCTIONS = tuple((axis, re.compile(rf"({names})(Backward)?")) for axis, names in _LIBRARY_FUNCTIONS)


@cache
def axis_of_function(name: str) -> Axis | None:
    """Return the axis of a library's autograd function; `None` for any other host op."""
    return next((axis for axis, pattern in _FUNCTIONS if pattern.fullmatch(name)), None)


@cache
def axis_of_mark(name: str) -> Axis | None:
    """Return the axis of an annotation around communication; `None` if it names none."""
    mark = parse_mark(name)
    if mark is not None:
        # A pipeline action encloses the whole forward pass: only its transfers are the pipeline's communication.
        if mark.area == "pp" and not mark.what.startswith(("send", "recv")):
            return None
        return _AREAS.get(mark.area)
    return next((axis for axis, pattern in _LIBRARY_MARKS if pattern.search(name)), None)


def axis_of_marks(frame: EventFrame, track: Ints, at: Ints) -> Ints:
    """Return the axis (index in `Axis`) of the innermost mark with an axis at each moment of a thread; -1 for none."""
    place: dict[Axis | None, int] = {None: -1} | {axis: index for index, axis in enumerate(Axis)}
    marks, functions = frame.rows(*MARKS), frame.rows(*HOST_OPS)
    of_mark = frame.by_name(marks, lambda name: place[axis_of_mark(name)], np.int64)
    of_function = frame.by_name(functions, lambda name: place[axis_of_function(name)], np.int64)
    rows, meaning = np.r_[marks, functions], np.r_[of_mark, of_function]
    rows, meaning = rows[meaning >= 0], meaning[meaning >= 0]
    if not len(rows):
        return np.full(len(at), -1, np.int64)
    inner = frame.nested(rows).innermost(track, at)
    return np.where(inner >= 0, meaning[inner], -1)
