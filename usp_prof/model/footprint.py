"""Footprint: the bytes that one pipeline rank needs at the peak of a step, part by part.

The same formulas serve one configuration and columns of a million. What backward keeps of one layer, in bytes for each
token in half precision (h hidden, q width of all queries, k of keys and values, o of what attention gives, l of the
latents that MLA projects queries, keys and values up from, f inner width, s sequence, a heads):

================  ======================================  ==================================================
norms             2 x 2h                                  over tp with sequence parallelism only
inputs            2 x 2h of attention and feed-forward    over tp with sequence parallelism only
attention         2q + 2k, output 2o                      over tp
latents           2 x 2l, before and after their norms    over tp with sequence parallelism only
score matrix      5 a s: softmax, dropout's mask, result  over tp; only without a fused kernel
feed-forward      8f with a gate, 4f without              over tp
mixture           the chosen experts' share of the above, and each token's copies (2 x 2h)
selective         Megatron's modules: the core (score matrix, output o), MLA's queries, keys and values, the results
                  of norms, the activation of experts, or whole feed-forward blocks are computed once more
full              2h, the layer's input, and one layer unfolded at a time; in groups one input for a group, and
                  all of its layers unfolded; layers of a stage that are not recomputed keep all of the above
================  ======================================  ==================================================

After Korthikanti et al. (arXiv 2205.05198) and Fujii et al. (arXiv 2411.06465), without dropout of hidden states. The
allocator's fragments, communicators' buffers and the CUDA context are `overhead_bytes`, 0 where no trainer is named.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import SELECTIVE, Columns, Configuration, columns_of
from usp_prof.model.shape import Column, Shape, shape_of

MASTER_AND_MOMENTS = 12
"""Optimizer bytes per parameter in mixed precision: a float32 copy and Adam's two moments."""
LOGIT_BYTES = 10
"""Bytes per logit: the head's output, its float32 copy, and its gradient."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one rank at the peak of a step, by part."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activation_bytes: int
    logit_bytes: int
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return the parts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


Parts = dict[str, NDArray[Any]]
"""Columns of the parts of `Footprint`, by field name: one entry per case."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Content of one pipeline rank: layers, vocabulary matrices, and micro-batches with stored activations."""

    layers: Column
    embedding: Column
    head: Column
    in_flight: Column


@dataclass(frozen=True, slots=True)
class Habits:
    """Memory that a trainer uses beyond the formulas; none by default."""

    activation_scale: Column = 1.0
    logit_bytes: Column = LOGIT_BYTES
    overhead_bytes: Column = 0.0
    offload_keeps: Column = 0.0
    """Optimizer bytes per weight that stay on the device with offloading, under ZeRO-2 and -3."""
    first_stage_of_gradients: Column = 2
    """ZeRO stage from which gradients are sharded; higher if they accumulate in full."""
    first_stage_of_weights: Column = 3
    input_bytes: Column = 2.0
    """Stored bytes per value of a product's input; less if the trainer keeps it in the type of 8-bit products."""
    inner_bytes: Column = 8.0
    """Stored bytes per value inside a gated feed-forward block, its second input included."""
    expert_bytes: Column = 4.0
    """Stored bytes per hidden value of a token's copy at an expert: the expert's input, and its result."""
    is_selective_by_op: Column = 0
    """1: selective recomputation keeps only attention's result and every second product (torchtitan)."""


PLAIN = Habits()


def footprint(model: ModelEntry, configuration: Configuration, stage: Stage) -> Footprint:
    """Return the footprint of a rank of the stage."""
    parts = footprints(shape_of(model), columns_of([configuration]), stage)
    return Footprint(**{part: round(float(np.ravel(size)[0])) for part, size in parts.items()})


def footprints(shape: Shape, c: Columns, stage: Stage, habits: Habits = PLAIN) -> Parts:
    """Return the footprint of a rank of each stage, for columns of configurations."""
    dense, routed = parameters(shape, c, stage)
    sharded = dense / c.shards + routed / c.expert_shards

    def held(bytes_each: Column, from_stage: Column) -> Column:
        """Return the bytes of state that ZeRO shards from a stage on, at these bytes per weight."""
        return bytes_each * np.where(c.zero >= from_stage, sharded, dense + routed)

    optimizer = np.where(c.width == 4, 8, MASTER_AND_MOMENTS)
    optimizer = np.where(c.optimizer_bytes > 0, c.optimizer_bytes, optimizer)
    # With offloading, the trainer's shards of weights stay on the device as masters (ZeRO-2 and -3).
    left_behind = np.where(c.zero >= 2, habits.offload_keeps, 0.0)
    optimizer = np.where(c.offload, np.minimum(left_behind, optimizer), optimizer)
    weights = held(c.width, habits.first_stage_of_weights)
    gradients = held(c.gradient_bytes, habits.first_stage_of_gradients)
    # ZeRO-3 has two gathered layers, the current one and the next, unless complete weights are kept.
    layer = Stage(1.0, embedding=0, head=0, in_flight=1.0)
    is_gathered = (c.zero >= habits.first_stage_of_weights) & (c.shards > 1)
    gathered = np.where(is_gathered, 2 * c.width * sum(parameters(shape, c, layer)), 0.0)
    tokens = c.micro_batch * shape.sequence / c.cp
    logits = tokens * shape.vocabulary / c.tp * habits.logit_bytes * np.where(stage.head, 1.0, 0.0) / c.loss_chunks
    parts = {
        "parameter_bytes": weights,
        "gradient_bytes": gradients,
        "optimizer_bytes": held(optimizer, 1),
        "gathered_bytes": gathered,
        "activation_bytes": activations(shape, c, stage, habits) * habits.activation_scale,
        "logit_bytes": logits,
        "overhead_bytes": habits.overhead_bytes,
    }
    return {part: np.broadcast_to(np.asarray(size, float), c.dp.shape) for part, size in parts.items()}


def parameters(shape: Shape, c: Columns, stage: Stage) -> tuple[Column, Column]:
    """Count a rank's weights before data-parallel sharding: those of every dp and cp rank, and those of experts."""
    # A stage with both ends of a model with tied embeddings has one matrix for both.
    is_shared = np.logical_and(stage.embedding, stage.head) & shape.tied
    matrices = np.where(stage.embedding, 1, 0) + np.where(stage.head, 1, 0) - np.where(is_shared, 1, 0)
    dense = stage.layers * shape.shared_parameters + matrices * shape.vocabulary * shape.hidden
    return dense / c.tp, stage.layers * shape.routed_parameters / c.ep / c.expert_tp


def activations(shape: Shape, c: Columns, stage: Stage, habits: Habits = PLAIN) -> Column:
    """Return the activations of all layers of a stage: of micro-batches in flight, and of the recomputed layer."""
    layers = np.maximum(stage.layers, 1.0)
    again = c.recomputed(layers, c.stages_of_rank)
    offloaded = np.minimum(c.offload_layers, layers)
    bytes_per_layer = layer_activations(shape, c, habits)
    # A group of layers stores the input of its first layer; the last group of a stage may be smaller.
    inputs = np.where(c.recompute_group > 1, np.ceil(again / c.recompute_group), again)
    of_inputs = inputs * layer_input(shape, c)
    by_op = np.asarray(habits.is_selective_by_op) * (c.recompute == SELECTIVE)
    # An overlapped expert exchange runs one more forward ahead, of one stage.
    ahead = np.where(c.expert_overlap & (c.micro_batches > 1), 1 / c.stages_of_rank, 0.0)
    stored = (
        (layers - again - offloaded) * np.where(by_op, activations_by_op(shape, c), bytes_per_layer) + of_inputs
    ) * (stage.in_flight + ahead)
    unfolded = np.where(by_op, 1.0, np.minimum(c.recompute_group, again))
    return np.asarray(stored + unfolded * bytes_per_layer)


def activations_by_op(shape: Shape, c: Columns) -> Column:
    """Return the bytes that torchtitan's policy keeps of a layer: its input, attention's result, every second product.

    The products are queries, keys, values, output, gate, up and down; the first of each pair is kept. The products of
    experts are grouped, and so not in the policy's list.
    """
    products = shape.query / c.tp + shape.key_value / 2 / c.tp + shape.hidden / c.spread
    products = products + np.where(np.asarray(shape.dense_width) > 0, shape.dense_width / c.tp, 0.0)
    values = shape.hidden / c.spread + shape.core_out / c.tp + products
    return np.asarray(c.micro_batch * shape.sequence / c.cp * values * c.width)


def layer_input(shape: Shape, c: Columns) -> Column:
    """Return the bytes of the input of one layer and micro-batch."""
    return np.asarray(c.micro_batch * shape.sequence / c.cp * shape.hidden / c.spread * c.width)


def layer_activations(shape: Shape, c: Columns, habits: Habits = PLAIN) -> Column:
    """Return the activations of one layer and micro-batch without what selective recomputation repeats, in bytes."""
    # Each value is bytes per token in half precision, a row of the table above; `hidden` is one tensor of width h.
    hidden = 2.0 * shape.hidden / c.spread
    as_input = np.asarray(habits.input_bytes) / 2
    is_cast = as_input < 1

    def unless(module: str, size: Column) -> Column:
        return np.where(c.repeats(module), 0.0, size)

    norms = 2 * hidden
    # Products of 8 bits store cast copies of the norms' results, which their recomputation does not free.
    normed = np.where(is_cast, hidden * as_input, unless("layernorm", hidden))

    # Attention: its input, MLA's latents, queries, keys and values, its output, the score matrix.
    latents = 2 * 2.0 * shape.latent / c.spread
    heads = 2.0 * (shape.query + shape.key_value) / c.tp
    heads = np.where(np.asarray(shape.latent) > 0, unless("mla_up_proj", heads), heads)
    # Cast inputs are copies: attention's result is stored by attention itself, too.
    core = unless("core_attn", 2.0 * shape.core_out / c.tp) * np.where(is_cast, 1 + as_input, 1.0)
    scores = 5.0 * shape.heads * shape.sequence / c.tp
    scores = np.where(c.fused_attention, 0.0, unless("core_attn", scores))
    attention = normed + latents + heads + core + scores

    # Feed-forward: its input and inner tensors; with experts the share of the layers that have them (`mixed`).
    per_inner = np.where(np.asarray(shape.matrices) == 3, habits.inner_bytes, 4.0) - 2.0 * (1 - as_input)
    has_dense, has_experts = np.asarray(shape.dense_width) > 0, np.asarray(shape.mixed) > 0
    dense_width = unless("mlp", shape.dense_width - shape.shared_width) + unless(
        "moe", unless("shared_experts", shape.shared_width)
    )
    dense = np.where(has_dense, normed + per_inner * dense_width / c.tp, 0.0)
    of_expert = (per_inner - np.where(c.repeats("moe_act"), 2.0 * as_input, 0.0)) * shape.expert_width
    of_expert = of_expert + (habits.expert_bytes - 2.0 * (1 - as_input)) * shape.hidden
    chosen = unless("moe", shape.mixed * shape.experts_per_token * of_expert / c.tp)
    router = np.where(has_experts, shape.mixed * normed, 0.0)

    tokens = c.micro_batch * shape.sequence / c.cp
    return np.asarray(tokens * (norms + attention + dense + chosen + router) * c.width / 2)
