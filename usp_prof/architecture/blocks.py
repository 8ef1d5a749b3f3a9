"""Blocks of a layer: their parameters, and what counting their work needs.

Weights take 2 FLOP per token and weight in forward, so each block lists which of its parameters multiply. In addition,
attention has scores and weighted values (heads, sizes, window), and a recurrence has the products on its state:

================  ==================================================  =======================
mamba, mamba2     state += x B, y = state C                           2 x channels x state
lightning         state += k v, y = q state                           2 x heads x k x v
gated_delta_net   as lightning, and state k is read before it         3 x heads x k x v
short_conv        none: its convolution's taps are weights            0
================  ==================================================  =======================

Decays, gates and the softmax are elementwise operations and, like norms, are not counted.
"""

from __future__ import annotations

from dataclasses import replace

from usp_prof.contract import BlockEntry

ATTENTION = "attention"
RECURRENCE = "recurrence"
FEED_FORWARD = "feed_forward"
PROJECTION = "projection"


def _block(kind: str, form: str, weights: int, small: int = 0, **sizes: int) -> BlockEntry:
    """Build a block in which every token uses all parameters: `weights` multiply, `small` (biases, norms) do not."""
    block = BlockEntry(kind=kind, form=form, **sizes)
    block.parameters = block.active_parameters = weights + small
    block.multiplying_parameters = weights
    return block


def attention(  # noqa: PLR0913 - a block has that many sizes
    hidden: int, heads: int, kv_heads: int, qk_size: int, v_size: int, *, form: str = "full", window: int = 0,
    more_weights: int = 0, small: int = 0,
) -> BlockEntry:  # fmt: skip
    """Build attention with separate query, key, value and output projections."""
    weights = hidden * (heads * qk_size + kv_heads * (qk_size + v_size)) + heads * v_size * hidden
    return _block(
        ATTENTION, form, weights + more_weights, small,
        heads=heads, kv_heads=kv_heads, qk_size=qk_size, v_size=v_size, window=window,
    )  # fmt: skip


def latent_attention(  # noqa: PLR0913 - a block has that many sizes
    hidden: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, v_size: int, *, window: int = 0,
    small: int = 0,
) -> BlockEntry:  # fmt: skip
    """Build multi-head latent attention (MLA): queries (if `q_rank`) and keys with values use low-rank projections."""
    qk_size = nope + rope
    query = hidden * q_rank + q_rank * heads * qk_size if q_rank else hidden * heads * qk_size
    key_value = hidden * (kv_rank + rope) + kv_rank * heads * (nope + v_size)
    norms = q_rank + kv_rank
    return _block(
        ATTENTION, "sparse" if window else "latent", query + key_value + heads * v_size * hidden, norms + small,
        heads=heads, kv_heads=heads, qk_size=qk_size, v_size=v_size, window=window,
    )  # fmt: skip


def indexer(hidden: int, q_rank: int, heads: int, size: int) -> BlockEntry:
    """Build DeepSeek's index for sparse attention: it scores all positions, and has no values."""
    weights = q_rank * heads * size + hidden * size + hidden * heads
    return _block(ATTENTION, "index", weights, 2 * size, heads=heads, kv_heads=1, qk_size=size)


def mamba(hidden: int, inner: int, state: int, taps: int, rank: int, *, biases: int = 0, small: int = 0) -> BlockEntry:
    """Build Mamba: each of the `inner` channels has a separate state."""
    weights = hidden * 2 * inner + inner * taps + inner * (rank + 2 * state) + rank * inner + inner * hidden
    # The step's bias, A and D.
    own = inner + inner * state + inner
    return _block(RECURRENCE, "mamba", weights, own + biases + small, state_products=2 * inner * state)


def mamba2(  # noqa: PLR0913 - a block has that many sizes
    hidden: int, heads: int, head_size: int, groups: int, state: int, taps: int, *, biases: int = 0, norm: int = 0
) -> BlockEntry:
    """Build Mamba-2: heads share their decay, groups of heads share B and C."""
    inner = heads * head_size
    channels = inner + 2 * groups * state
    weights = hidden * (inner + channels + heads) + channels * taps + inner * hidden
    # A, D and the step's bias for each head.
    return _block(
        RECURRENCE, "mamba2", weights, 3 * heads + norm + biases, heads=heads, state_products=2 * inner * state
    )


def gated_delta_net(
    hidden: int, key_heads: int, value_heads: int, key_size: int, value_size: int, taps: int
) -> BlockEntry:
    """Build a gated delta net: queries, keys, values and an output gate, with beta and decay per value head."""
    key, value = key_heads * key_size, value_heads * value_size
    projections = hidden * (2 * key + 2 * value + 2 * value_heads) + value * hidden
    weights = projections + (2 * key + value) * taps
    return _block(
        RECURRENCE, "gated_delta_net", weights, 2 * value_heads + value_size,
        heads=value_heads, kv_heads=key_heads, qk_size=key_size, v_size=value_size,
        state_products=3 * value_heads * key_size * value_size,
    )  # fmt: skip


def delta_attention(hidden: int, heads: int, size: int, taps: int) -> BlockEntry:
    """Build Kimi delta attention: a delta rule with decay per channel; decay and output gate use low ranks."""
    width = heads * size
    weights = hidden * 3 * width + 3 * width * taps + 2 * (hidden * size + size * width) + hidden * heads
    weights += width * hidden
    return _block(
        RECURRENCE, "delta_attention", weights, width + heads + size,
        heads=heads, kv_heads=heads, qk_size=size, v_size=size, state_products=3 * heads * size * size,
    )  # fmt: skip


def lightning(hidden: int, heads: int, size: int) -> BlockEntry:
    """Build lightning (linear) attention with an output gate."""
    width = heads * size
    return _block(
        RECURRENCE, "lightning", hidden * 3 * width + 2 * hidden * width, width,
        heads=heads, kv_heads=heads, qk_size=size, v_size=size, state_products=2 * heads * size * size,
    )  # fmt: skip


def short_conv(hidden: int, taps: int, *, biases: int = 0) -> BlockEntry:
    """Build a gated short convolution: three input projections, a few taps per channel, one output projection."""
    return _block(RECURRENCE, "short_conv", 3 * hidden * hidden + hidden * taps + hidden * hidden, biases)


def projection(hidden_in: int, hidden_out: int) -> BlockEntry:
    """Build a single matrix, such as the one that joins the two inputs of a multi-token-prediction module."""
    return _block(PROJECTION, "plain", hidden_in * hidden_out)


def feed_forward(hidden: int, width: int, matrices: int, *, small: int = 0) -> BlockEntry:
    """Build a feed-forward block of two matrices, or three with a gate."""
    return _block(FEED_FORWARD, "dense", matrices * hidden * width, small, ffn_hidden=width)


def mixture(  # noqa: PLR0913 - a block has that many sizes
    hidden: int, experts: int, chosen: int, width: int, matrices: int, *, shared_width: int = 0, shared_gate: int = 0,
    expert_small: int = 0, small: int = 0,
) -> BlockEntry:  # fmt: skip
    """Build a mixture of experts: a router, `chosen` of `experts`, and shared experts of `shared_width` in total."""
    expert = matrices * hidden * width
    every_token = hidden * experts + matrices * hidden * shared_width + shared_gate
    block = _block(
        FEED_FORWARD, "mixture", every_token, small,
        experts=experts, experts_per_token=chosen, expert_ffn_hidden=width, shared_ffn_hidden=shared_width,
    )  # fmt: skip
    return replace(
        block,
        parameters=block.parameters + experts * (expert + expert_small),
        active_parameters=block.active_parameters + chosen * (expert + expert_small),
        multiplying_parameters=block.multiplying_parameters + chosen * expert,
    )
