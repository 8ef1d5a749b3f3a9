"""Contract between trainer and profiler: the grammar of marks and the fields of the manifest; standard library only.

**Marks.** A mark is a profiler annotation whose *name* carries the data, since Kineto drops the arguments of
annotations: ``area::what key=value key=value``. Values are integers or words without blanks.

==========================  =====================================================================================
``pp::F stage=1 mb=3``      pipeline action; also B (full backward), I (input gradient), W (weight gradient)
``pp::send_f stage= mb= peer=``  and ``recv_f``, ``send_b``, ``recv_b``: activation and gradient transfers
``cp::ring_send_recv step=``  one ring exchange; ``cp::ring_wait``, ``cp::all_gather_kv``, ``cp::ulysses_a2a``
``ep::dispatch``            tokens to their experts; ``ep::combine``, ``ep::counts``; ``ep::load tokens=12
                            experts=9,3``, the experts' work: in total, and per expert of the rank
``dp::zero1_reduce_scatter``  hand-written ZeRO phases; ``dp::zero1_all_gather``, ``dp::bucket_all_reduce``; per layer
                            ``dp::zero_all_gather``, ``dp::zero_gather_wait``, ``dp::zero_reduce_scatter``
``train::forward``          phases: ``forward``, ``backward``, ``fwd_bwd``, ``optimizer``, ``grad_norm``, ``log``,
                            ``input``, ``checkpoint``; ``train::cut step=`` is a step that an error ended
``pace::fwd``               compute replaced by a timed wait (also ``dgrad``, ``wgrad``), labeled as synthetic
``fault::slow_rank``        an injected fault is active here
==========================  =====================================================================================

**Manifest.** ``run.json`` next to the traces, and the same text as trace metadata under ``usp_prof`` in every file.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from usp_prof import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
MANIFEST_NAME = "run.json"
TRACE_METADATA_KEY = "usp_prof"
SWEEP_FILE = "sweep.json"
"""File that marks the folder of a `usp-prof sweep`."""
PUBLISHED_SWEEPS = ("playbook",)
"""Formats of published sweeps that can be read."""

PIPELINE_KINDS = ("F", "B", "I", "W")
MARK_RANGES = MappingProxyType(
    {
        "stage": limits.STAGE,
        "mb": limits.MICRO_BATCHES,
        "peer": limits.RANK,
        "step": limits.NUMBER,
        "tokens": limits.COUNT,
    }
)
"""Range of a mark's number by its key; numbers under other keys have the range `limits.NUMBER`."""
AREAS = ("pp", "cp", "ep", "dp", "tp", "moe", "train", "pace", "fault")

_WHOLE = re.compile(r"-?[0-9]+")
_MARK = re.compile(r"(?P<area>[a-z]+)::(?P<what>[A-Za-z0-9_]+)(?P<rest>(?: [a-z_]+=\S+)*)\Z")


@dataclass(frozen=True, slots=True)
class Mark:
    """A parsed mark."""

    area: str
    what: str
    values: Mapping[str, int | str] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    """Keys whose numbers are outside their ranges; `values` does not contain them."""

    def number(self, key: str) -> int:
        """Return the integer of a key; -1 without one."""
        value = self.values.get(key)
        return value if isinstance(value, int) else -1


def format_mark(area: str, what: str, **values: int | str) -> str:
    """Format a mark's name; the inverse of `parse_mark`."""
    return " ".join([f"{area}::{what}", *(f"{key}={value}" for key, value in values.items())])


@lru_cache(1 << 14)
def parse_mark(name: str) -> Mark | None:
    """Parse a mark's name; return `None` for other annotations, such as those of other tools."""
    match = _MARK.match(name)
    if match is None or match["area"] not in AREAS:
        return None
    values: dict[str, int | str] = {}
    odd = []
    for pair in match["rest"].split():
        key, _, text = pair.partition("=")
        if not _WHOLE.fullmatch(text):
            values[key] = text
        elif (number := limits.parse_integer(text, MARK_RANGES.get(key, limits.NUMBER))) is not None:
            values[key] = number
        else:
            odd.append(key)
    return Mark(match["area"], match["what"], MappingProxyType(values), tuple(odd))


@dataclass(slots=True)
class GroupEntry:
    """One process group: its name, its ranks, and its axes (several if the group spans their product)."""

    name: str
    ranks: list[int]
    axes: list[str]
    description: str = ""


@dataclass(slots=True)
class BlockEntry:
    """One block of a layer: attention, a recurrence, a feed-forward block or a projection.

    Fields that do not apply to the kind of block are 0. `parameters` counts all parameters, `active_parameters` those
    that one token uses. `multiplying_parameters` counts the weights that one token uses in matrix products: of the
    selected experts only, without biases and norms.
    """

    kind: str = ""
    form: str = ""
    heads: int = 0
    kv_heads: int = 0
    qk_size: int = 0
    v_size: int = 0
    window: int = 0
    """Maximum number of positions that a query attends to (sliding window, chunk, selected keys); 0: all of them."""
    state_products: int = 0
    """Multiply-adds on a recurrence's state per token, in forward."""
    ffn_hidden: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0
    parameters: int = 0
    active_parameters: int = 0
    multiplying_parameters: int = 0


@dataclass(slots=True)
class LayerEntry:
    """One kind of layer: its blocks, and its parameters outside the blocks (norms)."""

    blocks: list[BlockEntry] = field(default_factory=list)
    norm_parameters: int = 0


@dataclass(slots=True)
class ModelEntry:
    """The trained model, as far as FLOP counting needs it; `flop_per_token` has one value per FLOP convention.

    If layers differ or are not plain, `layer_kinds` describes each kind. `layer_order` has the index of the kind of
    each layer, first to last. `mtp_kind` is the layer of a multi-token-prediction module; `mtp_layers` is the number
    of those that are trained.
    """

    name: str = ""
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn_hidden: int = 0
    vocab: int = 0
    sequence: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn_hidden: int = 0
    moe_layers: int = 0
    gated_ffn: bool = True
    tied_embeddings: bool = False
    parameters: int = 0
    active_parameters: int = 0
    embedding_parameters: int = 0
    layer_kinds: list[LayerEntry] = field(default_factory=list)
    layer_order: list[int] = field(default_factory=list)
    mtp_kind: LayerEntry | None = None
    mtp_layers: int = 0
    other_parameters: int = 0
    """Parameters outside layers, embedding and head: final norm, learned positions, head bias. Needs `layer_kinds`."""
    flop_per_token: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Parts of the description that were omitted or not understood, one sentence each."""


@dataclass(slots=True)
class Manifest:
    """Contents of `run.json`. Every field except `version` may be missing; missing values are reported, not guessed."""

    version: int = VERSION
    name: str = ""
    created: str = ""
    mesh: dict[str, int] = field(default_factory=dict)
    axis_order: list[str] = field(default_factory=list)
    coordinates: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: list[GroupEntry] = field(default_factory=list)
    stages: dict[str, list[int]] = field(default_factory=dict)
    schedule: str = ""
    micro_batches: int = 0
    gradient_accumulation: int = 0
    tokens_per_step: int = 0
    micro_batch_tokens: int = 0
    model: ModelEntry | None = None
    recompute: str = ""
    dtype: str = ""
    zero_stage: int = -1
    device: str = ""
    devices_per_node: int = 0
    peak_flops: float = 0.0
    peak_source: str = ""
    processes_per_device: int = 1
    software: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    paced: bool = False
    faults: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    unrecorded_step_ns: dict[str, float] = field(default_factory=dict)
    """Mean step time by rank before recording started, from the third step on; empty after too few steps."""
    join_rate: dict[str, float] = field(default_factory=dict)
    """Share of gloo collectives by rank whose group was restored; 1.0 if no group had to be restored."""
    notes: list[str] = field(default_factory=list)
    """Problems and gaps of the recording, one sentence each, with the affected rank."""

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """Parse a manifest; unknown fields of later versions are ignored."""
        field_values = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        groups = [GroupEntry(**_known_fields(GroupEntry, entry)) for entry in field_values.pop("groups", [])]
        model = field_values.pop("model", None)
        return cls(**field_values, groups=groups, model=model_entry(model) if model else None)


def model_entry(data: Mapping[str, Any]) -> ModelEntry:
    """Parse a model's entry from plain data; fields of later versions are ignored."""
    field_values = _known_fields(ModelEntry, data)
    field_values["layer_kinds"] = [_layer_entry(kind) for kind in field_values.get("layer_kinds", [])]
    mtp_kind = field_values.get("mtp_kind")
    field_values["mtp_kind"] = _layer_entry(mtp_kind) if mtp_kind else None
    if not all(0 <= place < len(field_values["layer_kinds"]) for place in field_values.get("layer_order", [])):
        raise ValueError("layer_order names a kind of layer that is not described")
    return ModelEntry(**field_values)


def _layer_entry(data: Mapping[str, Any]) -> LayerEntry:
    field_values = _known_fields(LayerEntry, data)
    blocks = [BlockEntry(**_known_fields(BlockEntry, block)) for block in field_values.pop("blocks", [])]
    return LayerEntry(**field_values, blocks=blocks)


def _known_fields(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - any of the dataclasses above
    return {key: data[key] for key in cls.__dataclass_fields__ if key in data}
