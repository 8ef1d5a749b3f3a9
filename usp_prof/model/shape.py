"""Shape: a model as the numbers that determine memory and time, as means over its layers.

Each field is one number, or an array with one entry per case, so that formulas work on tables of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from usp_prof import conventions
from usp_prof.contract import BlockEntry, ModelEntry

Column = float | NDArray[Any]
"""One number, or an array with one entry per case."""
T = TypeVar("T")
LATENT_FORMS = ("latent", "sparse")
USUAL_HEAD = 128
"""Size of most models' heads, for models without attention."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as numbers; values per layer are means over the layers."""

    layers: Column
    hidden: Column
    heads: Column
    query: Column
    """Width of all queries: heads x head dimension."""
    key_value: Column
    """Width of all keys and values together, as attention sees them."""
    core_out: Column
    """Width of the output of attention: heads x value size."""
    head_size: Column
    """Mean size of a head's query and value."""
    latent: Column
    """Width from which queries, keys and values are projected up (MLA); 0: from the layer's input."""
    sequence: Column
    attention_in: Column
    """Weights of a layer before the attention core, and after it."""
    attention_out: Column
    dense_width: Column
    """Inner width used by every token: dense blocks and shared experts, mean over layers."""
    shared_width: Column
    """The part of it in shared experts."""
    expert_width: Column
    experts: Column
    experts_per_token: Column
    mixed: Column
    """Share of the layers with experts."""
    matrices: Column
    vocabulary: Column
    tied: Column
    shared_parameters: Column
    routed_parameters: Column
    core_flops: Column
    """Forward FLOPs of attention's scores and values (causal) and of recurrent states, per token and layer."""


def stacked(rows: Sequence[T]) -> T:
    """Combine records of numbers into one record of columns."""
    first = rows[0]
    names = [field.name for field in fields(first)]  # type: ignore[arg-type]
    if all(row is first for row in rows):
        return first
    columns = {name: np.array([getattr(row, name) for row in rows]) for name in names}
    return type(first)(**columns)


def missing_sizes(model: ModelEntry) -> list[str]:
    """Return the sizes that a description lacks; without them it would look like a smaller model."""
    needed = ["layers", "hidden", "vocab"]
    if not model.layer_order:  # layers described separately have the sizes of their blocks
        dense = conventions.expert_layers(model) < model.layers or not model.expert_ffn_hidden
        needed += ["heads", *(["ffn_hidden"] if dense else [])]
    return [name for name in needed if getattr(model, name) < 1]


@dataclass(frozen=True, slots=True)
class _AttentionSizes:
    """Sizes of attention, as means over all layers; the fields of the same names in `Shape`."""

    query: float
    key_value: float
    core_out: float
    head_size: float
    latent: float
    weights: float
    """All weights that multiply."""
    attention_out: float


def _attention_of_entry(model: ModelEntry) -> _AttentionSizes:
    """Return the sizes of a model whose layers are alike."""
    width, heads = conventions.attention_width(model), max(model.heads, 1)
    return _AttentionSizes(
        query=float(width),
        key_value=2.0 * width * (model.kv_heads or model.heads) / heads,
        core_out=float(width),
        head_size=width / heads,
        latent=0.0,
        weights=float(conventions.attention_parameters(model)),
        attention_out=float(model.hidden * width),
    )


def _attention_of_blocks(model: ModelEntry, blocks: Sequence[BlockEntry]) -> _AttentionSizes:
    """Return the sizes of a model whose layers are described separately."""
    cores = [block for block in blocks if block.kind == "attention" and block.v_size]
    mixers = [block for block in blocks if block.kind in ("attention", "recurrence")]
    weights = sum(block.multiplying_parameters for block in mixers) / model.layers
    core_outputs = sum(block.heads * block.v_size for block in cores)
    # A latent has a norm with one weight per channel. Besides products, such a block has no other weights (except
    # biases, which no published model with latents has).
    compressed = [block for block in cores if block.form in LATENT_FORMS]
    return _AttentionSizes(
        query=sum(block.heads * block.qk_size for block in cores) / model.layers,
        key_value=sum(block.kv_heads * (block.qk_size + block.v_size) for block in cores) / model.layers,
        core_out=core_outputs / model.layers,
        head_size=sum(block.qk_size + block.v_size for block in cores) / 2 / len(cores) if cores else USUAL_HEAD,
        latent=sum(block.active_parameters - block.multiplying_parameters for block in compressed) / model.layers,
        weights=weights,
        attention_out=core_outputs * model.hidden / model.layers or weights / 3,
    )


def shape_of(model: ModelEntry) -> Shape:
    """Return a model as numbers."""
    blocks = [block for place in model.layer_order for block in model.layer_kinds[place].blocks]
    attention = _attention_of_blocks(model, blocks) if blocks else _attention_of_entry(model)
    mean = conventions.mean_layer(model)
    sparse = conventions.expert_layers(model) / model.layers
    expert_width = model.expert_ffn_hidden or model.ffn_hidden
    matrices = 3 if model.gated_ffn else 2
    expert_weights = sparse * matrices * model.hidden * expert_width * model.experts_per_token
    dense_width = max(mean.multiplying - attention.weights - expert_weights, 0.0) / (matrices * model.hidden)
    core_flops = conventions.attention_flop_per_token(model, conventions.CAUSAL) or 0.0
    core_flops += conventions.recurrence_flop_per_token(model)
    return Shape(
        layers=model.layers,
        hidden=model.hidden,
        heads=max(model.heads, 1),
        query=attention.query,
        key_value=attention.key_value,
        core_out=attention.core_out,
        head_size=attention.head_size,
        latent=attention.latent,
        sequence=model.sequence,
        attention_in=max(attention.weights - attention.attention_out, 0.0),
        attention_out=attention.attention_out,
        dense_width=dense_width,
        shared_width=min(sparse * model.shared_experts * expert_width, dense_width),
        expert_width=expert_width,
        experts=max(model.experts, 1),
        experts_per_token=model.experts_per_token if model.experts else 0,
        mixed=sparse,
        matrices=matrices,
        vocabulary=conventions.vocabulary_parameters(model) / model.hidden,
        tied=model.tied_embeddings,
        shared_parameters=mean.shared,
        routed_parameters=mean.routed,
        core_flops=core_flops / 3 / model.layers,
    )
