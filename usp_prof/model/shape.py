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
from usp_prof.contract import ModelEntry

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


def shape_of(model: ModelEntry) -> Shape:
    """Return a model as numbers."""
    mean = conventions.mean_layer(model)
    sparse = conventions.expert_layers(model) / model.layers
    expert = model.expert_ffn_hidden or model.ffn_hidden
    matrices = 3 if model.gated_ffn else 2
    width, kv_heads = conventions.attention_width(model), model.kv_heads or model.heads
    query, key_value = float(width), 2.0 * width * kv_heads / max(model.heads, 1)
    core_out, latent, head_size = query, 0.0, width / max(model.heads, 1)
    attention = float(conventions.attention_parameters(model))
    out = float(model.hidden * width)
    blocks = [block for place in model.layer_order for block in model.layer_kinds[place].blocks]
    cores = [block for block in blocks if block.kind == "attention" and block.v_size]
    if blocks:
        mixers = [block for block in blocks if block.kind in ("attention", "recurrence")]
        attention = sum(block.multiplying_parameters for block in mixers) / model.layers
        out = sum(block.heads * block.v_size for block in cores) * model.hidden / model.layers
        out = out or attention / 3
        query = sum(block.heads * block.qk_size for block in cores) / model.layers
        key_value = sum(block.kv_heads * (block.qk_size + block.v_size) for block in cores) / model.layers
        core_out = sum(block.heads * block.v_size for block in cores) / model.layers
        head_size = sum(block.qk_size + block.v_size for block in cores) / 2 / len(cores) if cores else USUAL_HEAD
        # A latent has a norm with one weight per channel. Besides products, such a block has no other weights (except
        # biases, which no published model with latents has).
        compressed = [block for block in cores if block.form in LATENT_FORMS]
        latent = sum(block.active_parameters - block.multiplying_parameters for block in compressed) / model.layers
    dense = mean.multiplying - attention - sparse * matrices * model.hidden * expert * model.experts_per_token
    core = conventions.attention_flop_per_token(model, conventions.CAUSAL) or 0.0
    core += conventions.recurrence_flop_per_token(model)
    return Shape(
        layers=model.layers,
        hidden=model.hidden,
        heads=max(model.heads, 1),
        query=query,
        key_value=key_value,
        core_out=core_out,
        head_size=head_size,
        latent=latent,
        sequence=model.sequence,
        attention_in=max(attention - out, 0.0),
        attention_out=out,
        dense_width=max(dense, 0.0) / (matrices * model.hidden),
        shared_width=min(sparse * model.shared_experts * expert, max(dense, 0.0) / (matrices * model.hidden)),
        expert_width=expert,
        experts=max(model.experts, 1),
        experts_per_token=model.experts_per_token if model.experts else 0,
        mixed=sparse,
        matrices=matrices,
        vocabulary=conventions.vocabulary_parameters(model) / model.hidden,
        tied=model.tied_embeddings,
        shared_parameters=mean.shared,
        routed_parameters=mean.routed,
        core_flops=core / 3 / model.layers,
    )
