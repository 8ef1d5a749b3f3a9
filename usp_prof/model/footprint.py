"""How many bytes does a rank need? Weights, gradients, optimizer, activations and logits of one pipeline stage.

Weights are counted from the model's shape. Activations follow Korthikanti et al. and Fujii et al. (arXiv 2411.06465):
what backward needs of one layer, per token and hidden unit, in half precision:

====================  ======================================================
two norms             4
attention             6 + 4 · kv_heads / heads (no score matrix: a fused kernel)
feed-forward          2 + 8 · width / hidden gated, 2 + 4 · width / hidden plain
selective             2 less (attention's output is computed once more)
full recomputation    2 (the layer's input)
====================  ======================================================

Tensor parallelism divides them all, since it is taken to come with sequence parallelism. What no formula covers (the
allocator's fragments, NCCL's buffers, the CUDA context) is not in the sum: keep a share of the device free for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from usp_prof import conventions
from usp_prof.model.configuration import Configuration, Recompute

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry

MASTER_AND_MOMENTS = 12
"""Bytes of the optimizer per parameter in mixed precision: a float32 copy and Adam's two moments."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of one rank at the peak of a step, part by part."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activation_bytes: int
    logit_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Give the parts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Stage:
    """What one pipeline rank holds: layers, vocabulary matrices, and micro-batches whose activations it keeps."""

    layers: float
    embedding: bool
    head: bool
    in_flight: float


def footprint(model: ModelEntry, configuration: Configuration, stage: Stage, *, gradient_bytes: int = 0) -> Footprint:
    """Give what a rank of the stage needs; `gradient_bytes` per parameter where gradients are wider than weights."""
    dense, experts = _parameters(model, configuration, stage)
    width = 4 if configuration.dtype == "fp32" else 2
    gradient = gradient_bytes or width
    optimizer = 8 if configuration.dtype == "fp32" else MASTER_AND_MOMENTS
    whole, own = configuration.shards, max(1, configuration.shards // configuration.ep)

    def held(bytes_each: int, from_stage: int) -> int:
        if configuration.zero < from_stage:
            return round(bytes_each * (dense + experts))
        return round(bytes_each * (dense / whole + experts / own))

    layers = max(stage.layers, 1.0)
    return Footprint(
        parameter_bytes=held(width, 3),
        gradient_bytes=held(gradient, 2),
        optimizer_bytes=held(optimizer, 1),
        gathered_bytes=_gathered(model, configuration, width) if configuration.zero == 3 else 0,
        activation_bytes=_activations(model, configuration, stage, layers),
        logit_bytes=_logits(model, configuration) if stage.head else 0,
    )


def layer_activation_bytes(model: ModelEntry, configuration: Configuration, recompute: Recompute) -> float:
    """Give what one layer keeps of one micro-batch."""
    tokens = configuration.micro_batch * model.sequence / (configuration.cp * configuration.tp)
    unit = tokens * model.hidden * (2 if configuration.dtype == "fp32" else 1)
    if recompute is Recompute.FULL:
        return 2 * unit
    share = (model.kv_heads or model.heads) / model.heads if model.heads else 1.0
    attention = 6 + 4 * share
    widths = model.ffn_hidden
    if model.experts:
        widths = (model.expert_ffn_hidden or model.ffn_hidden) * (model.experts_per_token + model.shared_experts)
    forward = 2 + (8 if model.gated_ffn else 4) * widths / model.hidden
    if recompute is Recompute.SELECTIVE:
        attention -= 2
    return unit * (4 + attention + forward)


def _parameters(model: ModelEntry, configuration: Configuration, stage: Stage) -> tuple[float, float]:
    """Count the weights of a rank before data-parallel sharding: those every rank of dp and cp holds, and experts'."""
    layer = conventions.mean_layer(model)
    vocabulary = conventions.vocabulary_parameters(model)
    matrices = int(stage.embedding) + int(stage.head and not (model.tied_embeddings and stage.embedding))
    dense = stage.layers * layer.shared + matrices * vocabulary
    return dense / configuration.tp, stage.layers * layer.routed / configuration.ep / configuration.tp


def _gathered(model: ModelEntry, configuration: Configuration, width: int) -> int:
    """Two layers whole: the one at work and the one being fetched."""
    one = Stage(1.0, embedding=False, head=False, in_flight=1.0)
    return round(2 * width * sum(_parameters(model, configuration, one)))


def _activations(model: ModelEntry, configuration: Configuration, stage: Stage, layers: float) -> int:
    kept = layer_activation_bytes(model, configuration, configuration.recompute)
    total = kept * layers * stage.in_flight
    if configuration.recompute is Recompute.FULL:  # one layer is unfolded at a time
        total += layer_activation_bytes(model, configuration, Recompute.NONE)
    return round(total)


def _logits(model: ModelEntry, configuration: Configuration) -> int:
    """Scores as the head gives them, in float32, and their gradient, for one micro-batch."""
    tokens = configuration.micro_batch * model.sequence / configuration.cp
    return round(tokens * model.vocab / configuration.tp * (2 + 4 + 4))
