"""How many floating-point operations does one token cost, under each named convention? Standard library only.

The same run of the same model differs by 18.6 % in MFU between the conventions, so a figure always names its own:

``palm``    6 · N + 12 · L · h · s, with every parameter N (the input embedding and the norms as well)
``matmul``  6 · (parameters that multiply: the head counts, the input embedding and the norms do not) + 12 · L · h · s
``causal``  as ``matmul``, the attention term halved, since a causal mask needs half of the square

``h`` of the attention term is heads x head dimension, ``s`` the whole sequence. A mixture of experts counts the
parameters that are active for a token. What the description does not allow to know is absent, never zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry

PALM = "palm"
MATMUL = "matmul"
CAUSAL = "causal"
CONVENTIONS = (PALM, MATMUL, CAUSAL)
DEFAULT = PALM


def attention_width(entry: ModelEntry) -> int:
    """Give heads x head dimension; the hidden size where either is unknown."""
    return entry.heads * entry.head_dim or entry.hidden


def attention_parameters(entry: ModelEntry) -> int:
    """Count the weights of one layer's query, key, value and output projections."""
    width = attention_width(entry)
    share = (entry.kv_heads or entry.heads) / entry.heads if entry.heads else 1.0
    return entry.hidden * (2 * width + 2 * round(width * share))


def ffn_parameters(entry: ModelEntry, width: int) -> int:
    """Count the weights of one feed-forward block (or one expert) of the inner `width`."""
    return (3 if entry.gated_ffn else 2) * entry.hidden * width


def expert_layers(entry: ModelEntry) -> int:
    """Count the layers that hold experts; every layer does where a mixture does not say."""
    return (entry.moe_layers or entry.layers) if entry.experts else 0


def vocabulary_parameters(entry: ModelEntry) -> int:
    """Count the weights of one embedding (or head) matrix."""
    return entry.embedding_parameters or entry.vocab * entry.hidden


def total_parameters(entry: ModelEntry) -> int | None:
    """Count all parameters: as declared, else from the shape (norms and biases then missing)."""
    if entry.parameters:
        return entry.parameters
    return _from_shape(entry, entry.experts)


def active_parameters(entry: ModelEntry) -> int | None:
    """Count the parameters that one token uses; all of them in a dense model."""
    if entry.active_parameters:
        return entry.active_parameters
    if not entry.experts:
        return total_parameters(entry)
    total, idle = total_parameters(entry), _idle_expert_parameters(entry)
    return None if total is None or idle is None else total - idle


def multiplying_parameters(entry: ModelEntry) -> int | None:
    """Count the active weights that are factors of a matrix product: the head is one, the input embedding is not."""
    shaped = _from_shape(entry, entry.experts_per_token)
    embedding = vocabulary_parameters(entry)
    if shaped is not None:
        return shaped - (0 if entry.tied_embeddings else embedding)
    active = active_parameters(entry)
    if active is None or not embedding:
        return None
    return active - (0 if entry.tied_embeddings else embedding)


def attention_flop_per_token(entry: ModelEntry) -> float | None:
    """Give 12 · L · h · s: scores and weighted values, forward and backward, over the full square."""
    value = 12.0 * entry.layers * attention_width(entry) * entry.sequence
    return value or None


def flop_per_token(entry: ModelEntry) -> dict[str, float]:
    """Give the cost of one token, forward and backward, under each convention that the description allows."""
    attention = attention_flop_per_token(entry)
    active, multiplying = active_parameters(entry), multiplying_parameters(entry)
    cost: dict[str, float] = {}
    if attention is None:
        return cost
    if active is not None:
        cost[PALM] = 6.0 * active + attention
    if multiplying is not None:
        cost[MATMUL] = 6.0 * multiplying + attention
        cost[CAUSAL] = 6.0 * multiplying + attention / 2
    return cost


def complete(entry: ModelEntry) -> ModelEntry:
    """Fill in the counts and the costs that follow from the rest; what was declared stays."""
    filled = replace(
        entry,
        parameters=total_parameters(entry) or 0,
        active_parameters=active_parameters(entry) or 0,
        embedding_parameters=vocabulary_parameters(entry),
    )
    return replace(filled, flop_per_token={**flop_per_token(filled), **entry.flop_per_token})


def _from_shape(entry: ModelEntry, experts: int) -> int | None:
    sparse = expert_layers(entry)
    dense = entry.layers - sparse
    known = entry.layers and entry.hidden and entry.vocab and (entry.ffn_hidden or not dense)
    if not known:
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
