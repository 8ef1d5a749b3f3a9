"""FLOP conventions: FLOPs per token under each named convention. Standard library only.

The MFU of one run differs by 18.6% between the conventions, so every figure names its convention:

``palm``    6 · N + 12 · L · h · s, where N counts all parameters (including the input embedding and the norms)
``matmul``  6 · (parameters that multiply: the head counts, the input embedding and the norms do not) + 12 · L · h · s
``causal``  like ``matmul`` with half the attention term, because a causal mask needs half of the score matrix

In the attention term, ``h`` is heads x head dimension and ``s`` the sequence length. For a mixture of experts, only the
parameters that are active for a token count. Values that the description does not determine are absent, never zero.

For a model described layer by layer, 12 · L · h · s is replaced by the sum over its layers of
6 · heads · (query/key size + value size) · positions attended:

================  =========================  ==============================
attention         ``palm`` and ``matmul``    ``causal``
================  =========================  ==============================
full              s                          s / 2
window or chunk   min(s, w)                  w if w < s, else s / 2
================  =========================  ==============================

A recurrence adds 6 FLOP for each product on its state, regardless of the sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.contract import BlockEntry, LayerEntry, ModelEntry

PALM = "palm"
MATMUL = "matmul"
CAUSAL = "causal"
CONVENTIONS = (PALM, MATMUL, CAUSAL)
DEFAULT = PALM


def attention_width(entry: ModelEntry) -> int:
    """Return heads x head dimension, or the hidden size if either is unknown."""
    return entry.heads * entry.head_dim or entry.hidden


def attention_parameters(entry: ModelEntry) -> int:
    """Count the weights of one layer's query, key, value and output projections."""
    width = attention_width(entry)
    share = (entry.kv_heads or entry.heads) / entry.heads if entry.heads else 1.0
    return entry.hidden * (2 * width + 2 * round(width * share))


def ffn_parameters(entry: ModelEntry, width: int) -> int:
    """Count the weights of one feed-forward block (or one expert) of inner size `width`."""
    return (3 if entry.gated_ffn else 2) * entry.hidden * width


def expert_layers(entry: ModelEntry) -> int:
    """Count the layers with experts; by default, all layers of a mixture of experts."""
    return (entry.moe_layers or entry.layers) if entry.experts else 0


def vocabulary_parameters(entry: ModelEntry) -> int:
    """Count the weights of one embedding (or head) matrix."""
    return entry.embedding_parameters or entry.vocab * entry.hidden


def total_parameters(entry: ModelEntry) -> int | None:
    """Count all parameters: as declared, else from the shape (which omits norms and biases)."""
    if entry.parameters:
        return entry.parameters
    if entry.layer_kinds:
        return _from_layers(entry, "parameters")
    return _from_shape(entry, entry.experts)


def active_parameters(entry: ModelEntry) -> int | None:
    """Count the parameters that one token uses; all of them in a dense model."""
    if entry.active_parameters:
        return entry.active_parameters
    if entry.layer_kinds:
        return _from_layers(entry, "active_parameters")
    if not entry.experts:
        return total_parameters(entry)
    total, idle = total_parameters(entry), _idle_expert_parameters(entry)
    return None if total is None or idle is None else total - idle


def _from_layers(entry: ModelEntry, count: str) -> int:
    """Sum one count of parameters over all blocks, with the norms and what is outside of layers."""
    layers = list(_layers(entry))
    blocks: int = sum(getattr(block, count) for layer in layers for block in layer.blocks)
    return _vocabulary(entry) + entry.other_parameters + sum(layer.norm_parameters for layer in layers) + blocks


def multiplying_parameters(entry: ModelEntry) -> int | None:
    """Count the active weights used in matrix products: the head counts, the input embedding does not.

    Each trained multi-token-prediction layer uses the head once more.
    """
    if entry.layer_kinds:
        heads = (1 + entry.mtp_layers) * vocabulary_parameters(entry)
        return heads + sum(block.multiplying_parameters for block in _blocks(entry))
    shaped = _from_shape(entry, entry.experts_per_token)
    embedding = vocabulary_parameters(entry)
    if shaped is not None:
        return shaped - (0 if entry.tied_embeddings else embedding)
    active = active_parameters(entry)
    if active is None or not embedding:
        return None
    return active - (0 if entry.tied_embeddings else embedding)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Parameters of one layer, averaged over a model's layers.

    `routed` counts the experts that a router selects from, and `shared` all other parameters. `multiplying` counts the
    weights of both that one token uses in matrix products.
    """

    shared: float
    routed: float
    multiplying: float


def mean_layer(entry: ModelEntry) -> LayerWeights:
    """Return the average weights of a layer; a model described by its shape has two norms per layer."""
    expert = ffn_parameters(entry, entry.expert_ffn_hidden or entry.ffn_hidden)
    if entry.layer_kinds:
        layers = [entry.layer_kinds[place] for place in entry.layer_order]
        blocks = [block for layer in layers for block in layer.blocks]
        total_parameters = sum(block.parameters for block in blocks) + sum(layer.norm_parameters for layer in layers)
        routed = sum(block.experts for block in blocks) * expert
        multiplying = sum(block.multiplying_parameters for block in blocks)
        return LayerWeights((total_parameters - routed) / len(layers), routed / len(layers), multiplying / len(layers))
    sparse = expert_layers(entry) / entry.layers if entry.layers else 0.0
    every_token: float = attention_parameters(entry) + (1 - sparse) * ffn_parameters(entry, entry.ffn_hidden)
    every_token += sparse * (expert * entry.shared_experts + entry.hidden * entry.experts)
    return LayerWeights(
        shared=every_token + 2 * entry.hidden,
        routed=sparse * expert * entry.experts,
        multiplying=every_token + sparse * expert * entry.experts_per_token,
    )


def attention_flop_per_token(entry: ModelEntry, convention: str = MATMUL) -> float | None:
    """Return the FLOPs of scores and weighted values, forward and backward, or `None` without a sequence length.

    For a model described only by its shape, this is 12 · L · h · s; `causal` halves it.
    """
    if not entry.sequence:
        return None
    if entry.layer_kinds:
        return float(sum(_attention_of(block, entry.sequence, convention) for block in _blocks(entry)))
    value = 12.0 * entry.layers * attention_width(entry) * entry.sequence
    return (value / 2 if convention == CAUSAL else value) or None


def attended_positions(window: int, sequence: int, convention: str = MATMUL) -> float:
    """Return the number of positions that a query attends to; a window as long as the sequence is full attention."""
    if 0 < window < sequence:
        return float(window)
    return sequence / 2 if convention == CAUSAL else float(sequence)


def recurrence_flop_per_token(entry: ModelEntry) -> float:
    """Return the FLOPs of products on the states of linear attention and SSM layers, forward and backward."""
    return 6.0 * sum(block.state_products for block in _blocks(entry))


def flop_per_token(entry: ModelEntry) -> dict[str, float]:
    """Return FLOPs per token (forward and backward) under each convention that the description determines."""
    attention = attention_flop_per_token(entry)
    active, multiplying = active_parameters(entry), multiplying_parameters(entry)
    cost: dict[str, float] = {}
    if attention is None:
        return cost
    recurrence = recurrence_flop_per_token(entry)
    if active is not None:
        # Multi-token prediction uses the head again: more FLOPs, but no more parameters.
        again = entry.mtp_layers * vocabulary_parameters(entry) if entry.layer_kinds else 0
        cost[PALM] = 6.0 * (active + again) + attention + recurrence
    if multiplying is not None:
        cost[MATMUL] = 6.0 * multiplying + attention + recurrence
        cost[CAUSAL] = 6.0 * multiplying + (attention_flop_per_token(entry, CAUSAL) or 0.0) + recurrence
    return cost


def complete(entry: ModelEntry) -> ModelEntry:
    """Fill in derived counts and FLOPs; declared values are kept."""
    filled = replace(
        entry,
        parameters=total_parameters(entry) or 0,
        active_parameters=active_parameters(entry) or 0,
        embedding_parameters=vocabulary_parameters(entry),
    )
    return replace(filled, flop_per_token={**flop_per_token(filled), **entry.flop_per_token})


def _layers(entry: ModelEntry) -> Iterator[LayerEntry]:
    """Yield every described layer and the trained multi-token-prediction layers."""
    for place in entry.layer_order:
        yield entry.layer_kinds[place]
    if entry.mtp_kind is not None:
        for _ in range(entry.mtp_layers):
            yield entry.mtp_kind


def _blocks(entry: ModelEntry) -> Iterator[BlockEntry]:
    for layer in _layers(entry):
        yield from layer.blocks


def _attention_of(block: BlockEntry, sequence: int, convention: str) -> float:
    if block.kind != "attention":
        return 0.0
    positions = attended_positions(block.window, sequence, convention)
    return 6.0 * block.heads * (block.qk_size + block.v_size) * positions


def _vocabulary(entry: ModelEntry) -> int:
    return vocabulary_parameters(entry) * (1 if entry.tied_embeddings else 2)


def _from_shape(entry: ModelEntry, experts: int) -> int | None:
    sparse = expert_layers(entry)
    dense = entry.layers - sparse
    has_shape = entry.layers and entry.hidden and entry.vocab and (entry.ffn_hidden or not dense)
    if not has_shape:
        return None
    block = attention_parameters(entry) * entry.layers + ffn_parameters(entry, entry.ffn_hidden) * dense
    expert = ffn_parameters(entry, entry.expert_ffn_hidden or entry.ffn_hidden)
    if sparse:
        if not expert or not experts:
            return None
        block += sparse * (expert * (experts + entry.shared_experts) + entry.hidden * entry.experts)
    return block + vocabulary_parameters(entry) * (1 if entry.tied_embeddings else 2)


def _idle_expert_parameters(entry: ModelEntry) -> int | None:
    expert = ffn_parameters(entry, entry.expert_ffn_hidden or entry.ffn_hidden)
    if not expert or not entry.experts_per_token or not expert_layers(entry):
        return None
    return expert_layers(entry) * expert * (entry.experts - entry.experts_per_token)
