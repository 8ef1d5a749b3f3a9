"""Compute: seconds of one layer and of the vocabulary's head on a rank, for one micro-batch and direction.

    matrix products   roofline: FLOP over the efficiency of the shape, plus a launch per product
    attention's core  FLOP at its own efficiency; unfused, the passes over its score matrix
    the rest          norms, activations, rotary embedding, loss: their bytes over the memory's rate
    host              a layer takes at least as long as its launches and its copies

Backward has two products for each one of forward, and twice the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.cases import Cases
from usp_prof.model.configuration import SELECTIVE
from usp_prof.model.shape import USUAL_HEAD, Column

SHORT_SUM = 150.0
"""Inner dimension of a product at which half of the efficiency is lost."""
TILES = 128 * 128 * 66.0
"""Outputs of a product at which half of its efficiency is lost: half a wave of tiles of 128 x 128."""
LAUNCH = 3e-6
"""Minimum seconds of a product of any size."""
KERNEL_LATENCY = 30e-6
"""Minimum seconds of a kernel outside of products (MooreThreads/SimuMax, 4dcaae513: 30 microseconds on B200, 40 on
A100)."""
CORE_BACKWARD = 2.5
"""Ratio of backward to forward FLOP in attention's core, which recomputes its scores."""
FORWARD_FLOPS, BACKWARD_FLOPS = 4.0, 10.0
"""FLOPs per score of attention and channel of a head; each direction also takes one exponential per score."""
EXPONENTIALS = 3.9e12
"""Exponentials per second of an H100 SXM (FlashAttention-3, arXiv 2407.08608); other devices have 2.4e12 to 4.4e12."""
SHORT_BLOCK = 256.0
"""Positions per block at which half of attention's efficiency is lost: two tiles of flash attention, 128 x 128."""
SHARPNESS = 8
"""Power of the norm that combines the times of device and host. The host runs ahead over many kernels, so it is nearly
a maximum: with 4, normal rows of the playbook's sweep are off by 5.2%, with 8 by 3.9% (five folds)."""
CAST_PASSES = 2.0
"""Passes over the inputs of products, in 16 bits, for a cast to 8 bits: one read and two writes of half the size, the
second transposed for the gradients of weights."""
HIDDEN_PASSES, QUERY_PASSES, WIDTH_PASSES, SCORE_PASSES, LOGIT_PASSES = 10, 5, 1.4, 6, 4
"""Number of reads or writes per value in forward.

They are for norms and residuals, rotary and copies, the activation (per matrix of the feed-forward block), the score
matrix (scale, mask, softmax, dropout), and the logits (float32, loss).
"""


@dataclass(frozen=True, slots=True)
class Direction:
    """Forward and backward times, in seconds."""

    forward: Column
    backward: Column
    weights: Column = 0.0
    """Share of backward that computes the gradients of weights: one product for each of forward, in seconds."""

    def scaled(self, factor: Column) -> Direction:
        """Return all times multiplied by a factor."""
        return Direction(self.forward * factor, self.backward * factor, self.weights * factor)


def product(c: Cases, rows: Column, columns: Column, inner: Column, peak: Column | None = None) -> Column:
    """Return the seconds of a matrix product (rows x inner) (inner x columns)."""
    peak = c.machine.peak if peak is None else peak
    share = c.machine.efficiency * c.profile.gemm_share
    share = share * inner / (inner + SHORT_SUM)
    area = rows * columns
    share = share * area / (area + TILES)
    return LAUNCH + 2.0 * rows * columns * inner / (peak * share)


def layer(c: Cases) -> Direction:
    """Return the device time of the mean layer, with recomputation in backward."""
    s = c.shape
    rows = c.tokens
    attention_out = product(c, rows, s.hidden, s.attention_out / s.hidden / c.tp)
    attention = product(c, rows, s.attention_in / s.hidden / c.tp, s.hidden) + attention_out
    up = product(c, rows, np.maximum(s.dense_width, 1) * (s.matrices - 1) / c.tp, s.hidden)
    down = product(c, rows, s.hidden, np.maximum(s.dense_width, 1) / c.tp)
    dense, mixture = np.where(s.dense_width > 0, up + down, 0.0), s.mixed * experts(c)
    products = attention + dense + mixture
    core = core_times(c)
    rest, cast = elementwise(c), casting(c)
    forward = products + core.forward + rest + cast
    backward = 2 * products + core.backward + 2 * rest + cast
    # torchtitan's policy `op` repeats keys, attention's output, the second product of the feed-forward block, experts
    # and everything outside of products except attention's core.
    keys = product(c, rows, s.key_value / 2 / c.tp, s.hidden)
    second = np.where(s.dense_width > 0, up / (s.matrices - 1), 0.0)
    ops_again = keys + attention_out + second + mixture + rest + cast
    selective = np.where(c.profile.is_selective_by_op, ops_again, _modules_again(c, core.forward, dense, mixture))
    again = c.recomputed_share * forward + np.where(c.recompute == SELECTIVE, selective, 0.0)
    return Direction(forward, backward + again, products)


def _modules_again(c: Cases, core: Column, dense: Column, mixture: Column) -> Column:
    """Return the forward time of the modules that selective recomputation repeats, per mean layer."""
    s = c.shape
    of_shared = s.shared_width / np.maximum(s.dense_width, 1)
    # One latent for queries, and one for keys and values.
    latent_up = product(c, c.tokens, (s.query + s.key_value) / c.tp, np.maximum(s.latent / 2, 1))
    activated = s.mixed * s.experts_per_token * s.matrices * s.expert_width / c.tp
    per_value = c.tokens * c.width / c.machine.memory_rate
    seconds = {
        "core_attn": core,
        "mla_up_proj": np.where(np.asarray(s.latent) > 0, latent_up, 0.0),
        "layernorm": 2 * 2 * s.hidden / c.spread * per_value,
        "mlp": dense * (1 - of_shared),
        "shared_experts": dense * of_shared,
        "moe": mixture + dense * of_shared,
        "moe_act": activated * per_value,
    }
    return sum(np.where(c.repeats(module), time, 0.0) for module, time in seconds.items())


def experts(c: Cases) -> Column:
    """Return the time of one mixture's grouped products: each expert has its own rows, the same number for each."""
    s = c.shape
    chosen = c.tokens / c.tp * s.experts_per_token
    local = np.maximum(s.experts / c.ep, 1)
    rows = np.maximum(chosen / local, 1)
    up = product(c, rows, np.maximum(s.expert_width, 1) * (s.matrices - 1), s.hidden) - LAUNCH
    down = product(c, rows, s.hidden, np.maximum(s.expert_width, 1)) - LAUNCH
    # A grouped product fills the device with the tiles of all experts, so only the loss by its shape remains.
    area_up, area_down = rows * s.expert_width * (s.matrices - 1), rows * s.hidden
    up = up * (area_up * local + TILES) / (area_up + TILES) / local
    down = down * (area_down * local + TILES) / (area_down + TILES) / local
    return local * (up + down) + 2 * LAUNCH


def core_times(c: Cases) -> Direction:
    """Return the times of attention's core."""
    s = c.shape
    flops = s.core_flops * c.tokens / c.tp
    # A causal sequence is two halves per rank of cp; short blocks use the device poorly.
    block = s.sequence / (2 * c.cp)
    short = (block + SHORT_BLOCK) / block
    once = flops / (c.machine.core_peak * c.machine.core_efficiency) * short
    scores = c.tokens * s.sequence * s.heads / c.tp * 2 * SCORE_PASSES / c.machine.memory_rate
    # Unfused, the half above the diagonal is computed as well.
    unfused = 2 * once + scores * c.profile.rest_scale
    forward = np.where(c.fused_attention, once * _of_small_heads(c, FORWARD_FLOPS), unfused)
    backward = np.where(c.fused_attention, once * _of_small_heads(c, BACKWARD_FLOPS), unfused)
    return Direction(forward, CORE_BACKWARD * backward)


def _of_small_heads(c: Cases, flops_of_score: float) -> Column:
    """Return the factor on attention's time by the size of its heads; efficiencies were measured with 128 channels.

    Small heads have fewer FLOPs per exponential, and matrix units do not compute exponentials.
    """
    channels = c.machine.core_peak / (flops_of_score * EXPONENTIALS)
    return np.asarray((1 + channels / c.shape.head_size) / (1 + channels / USUAL_HEAD))


def elementwise(c: Cases) -> Column:
    """Return the forward time of norms, residuals, activations and rotary embeddings, by their bytes."""
    s = c.shape
    values = HIDDEN_PASSES * s.hidden / c.spread + QUERY_PASSES * (s.query + s.key_value) / c.tp
    values = values + WIDTH_PASSES * s.matrices * _inner_width(c)
    scale = c.profile.rest_scale * np.where(c.profile.is_eager, c.profile.eager_scale, 1.0)
    return np.asarray(
        c.profile.rest_kernels * KERNEL_LATENCY + c.tokens * values * c.width * scale / c.machine.memory_rate
    )


def casting(c: Cases) -> Column:
    """Return the forward time for casting inputs of products to 8 bits; backward casts gradients instead."""
    s = c.shape
    # Inputs of gathers are cast before they are gathered.
    values = CAST_PASSES * (s.hidden / c.spread + s.query / c.tp + _inner_width(c))
    return np.where(c.machine.is_narrow, c.tokens * values * c.width / c.machine.memory_rate, 0.0)


def _inner_width(c: Cases) -> Column:
    """Return the inner width of feed-forward blocks on a rank, including the copies of a token for its experts."""
    s = c.shape
    return s.dense_width / c.tp + s.mixed * (s.expert_width + 2 * s.hidden) * s.experts_per_token / c.tp


def head(c: Cases) -> Direction:
    """Return the time of the product with the vocabulary, and of the loss."""
    s = c.shape
    multiply = product(c, c.tokens, s.vocabulary / c.tp, s.hidden, c.machine.core_peak)
    loss = c.tokens * s.vocabulary / c.tp * LOGIT_PASSES * 4 * c.profile.rest_scale / c.machine.memory_rate
    return Direction(multiply + loss, 2 * multiply + loss, multiply)


def with_host(c: Cases, times: Direction) -> Direction:
    """Combine device and host times: neither direction of a layer is faster than its launches, nor than its copies."""
    layer_host = np.where(c.fused_attention, c.profile.host_layer, c.profile.host_unfused)
    host = layer_host + c.profile.host_tensor * (c.tp > 1)
    # Offloaded activations go to the host's memory in forward, and return in backward.
    copies = memory.offloaded_activations(c) / c.shape.layers / c.machine.host_link_rate
    forward = np.maximum(smooth_maximum(times.forward, host / 3), copies)
    backward = np.maximum(smooth_maximum(times.backward, host * (2 + c.recomputed_share) / 3), copies)
    return Direction(forward, backward, times.weights * backward / times.backward)


def smooth_maximum(device: Column, host: Column) -> Column:
    """Return a smooth maximum of two times; if they are equal, the result is 9% longer than both."""
    return (device**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS)
