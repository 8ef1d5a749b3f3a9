"""Data parallelism: start of each message, the part hidden by compute, and the exposed part.

    in buckets       (ZeRO-0, -1, Megatron's -2) a bucket of gradients starts when backward has computed it, and is
                     sent during the rest of backward; buckets are sent one after another. The gather of new
                     weights follows the optimizer, where no compute hides it. If gradients of an earlier
                     micro-batch are also reduced, they continue during the forward of the next
    layer by layer   (ZeRO-3, FSDP2's and our ZeRO-2) a layer's weights are sent while another layer computes, its
                     gradients during the backward of the layer before it. Nothing hides the gathers at the start
                     of a forward, nor the last reductions of a step

`messages.py` has the number of each message per step. ZeRO-3 sends more in total, but may expose less. Ranks of gloo
compute on their host, which cannot run ahead, so backward also waits for its first layer. A reduce-scatter of gloo is
an all-reduce, in the opposite ring direction to gathers, so it takes none of their bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from usp_prof.extras.planner import messages, network
from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.compute import Direction
from usp_prof.extras.planner.stages import Stages
from usp_prof.model.shape import Column

LEAST_EXPOSED = 0.05
"""Minimum exposed share of a message, even next to long compute: its start, and the wait for it."""
READ_AND_WRITTEN = 2
"""Passes over memory per copy: weights are copied out of the gathered buffer, gradients into the send buffer."""


def exposed_part(message: Column, compute: Column) -> Column:
    """Return the exposed part of a message that overlaps with compute."""
    return np.maximum(message - compute, LEAST_EXPOSED * np.asarray(message))


def exposed_per_layer(c: Cases, times: Direction, stages: Stages, *, in_each: bool = False) -> Column:
    """Return the exposed time of the mean layer and micro-batch, forward and backward together.

    `in_each` leaves out the messages that are not sent in each micro-batch.
    """
    p = c.profile
    often = messages.messages_per_step(c)
    forward_gathers, backward_gathers, sums = (
        np.floor(number / c.micro_batches) if in_each else number / c.micro_batches
        for number in (often.forward_gathers, often.backward_gathers, often.sums)
    )
    shared, routed = messages.weights_of_layer(c)
    weights, sent = _on_ring(c, shared, routed), messages.gradient_width(c)
    gathered, summed = gather(c, weights * c.width), _sum(c, shared * sent, routed * sent)

    # Layers per pass: the first one is gathered when it is needed; in backward the host of a device runs ahead.
    of_pass = np.maximum(stages.layers.max(axis=0) / c.stages_of_rank, 1)
    hidden_gather = exposed_part(gathered, p.gather_overlap * times.forward)
    in_forward = forward_gathers * (gathered + (of_pass - 1) * hidden_gather) / of_pass

    own_gather = backward_gathers * gathered
    without_sum = exposed_part(own_gather, p.gather_overlap * times.backward)
    with_sum = _exposed_with_backward(c, own_gather, summed, times.backward)
    in_backward = (1 - sums) * without_sum + sums * with_sum
    in_backward = np.where(p.gloo, (own_gather + (of_pass - 1) * in_backward) / of_pass, in_backward)

    copied_sums = np.where(_sums_after(c), 0.0, sums * sent)
    copied_bytes = weights * ((forward_gathers + backward_gathers) * c.width + copied_sums)
    copied = np.where(c.shards > 1, copied_bytes * READ_AND_WRITTEN / c.machine.memory_rate, 0.0)
    shown = (in_forward + in_backward + copied) * p.sharded_exposed
    return np.where(np.logical_and(messages.goes_by_layer(c), _is_shared(c)), shown, 0.0)


def _exposed_with_backward(c: Cases, gathered: Column, summed: Column, backward: Column) -> Column:
    """Return the exposed part of a layer's gather and of its reduction in backward."""
    hides = c.profile.gather_overlap * backward
    on_one_link = exposed_part(gathered + summed, hides)
    on_two_links = np.maximum(exposed_part(gathered, hides), exposed_part(summed, backward))
    beside = np.where(c.profile.gloo, on_two_links, on_one_link)
    return np.where(_sums_after(c), exposed_part(gathered, hides), beside)


def _sums_after(c: Cases) -> Column:
    """Mark the cases that reduce after the last backward, with nothing to hide it: PyTorch's pipelines."""
    return np.logical_and(c.profile.is_fsdp2, c.pp > 1)


def exposed_per_step(c: Cases, stages: Stages, forward: Column, backward: Column) -> Column:
    """Return the exposed time per step outside `exposed_per_layer`; `forward` and `backward` are per micro-batch."""
    weights = messages.weights_of_fullest_rank(c, stages)
    by_layer = _of_ends(c, weights.ends, forward, backward, stages.layers.max(axis=0))
    by_layer = (by_layer + _of_layers_after(c, weights)) * c.profile.sharded_exposed
    in_buckets = _of_buckets(c, weights, forward, backward) * c.profile.data_exposed
    shown = np.where(messages.goes_by_layer(c), by_layer, in_buckets)
    return np.where(_is_shared(c), shown, 0.0)


def _of_buckets(c: Cases, weights: messages.Weights, forward: Column, backward: Column) -> Column:
    """Return the exposed part of bucketed gradient reductions and of the weight gathers after them."""
    p = c.profile
    shared, routed = weights.shared + weights.ends, weights.routed
    on_ring, sent = _on_ring(c, shared, routed), messages.gradient_width(c)
    of_sums = shared + routed * _shorter(c.expert_shards * _copies(c), c.shards * c.replicas)
    # Megatron divides by parameters of a bucket, and its own rule replaces the bytes.
    of_bucket = np.maximum(p.bucket_parameters, p.bucket_parameters_per_rank * c.shards * c.replicas) * sent
    buckets = np.maximum(of_sums * sent / np.where(of_bucket > 0, of_bucket, p.bucket_bytes), p.least_buckets)
    overlap = np.minimum(p.data_overlap, 1.0)

    sum_of_one = _sum(c, shared * sent / buckets, routed * sent / buckets)
    # The first bucket waits for its share of backward.
    last_sums = np.maximum(buckets * sum_of_one - overlap * backward * (1 - 1 / buckets), sum_of_one)
    earlier_sums = exposed_part(buckets * sum_of_one, overlap * (forward + backward))
    sums = last_sums + np.maximum(messages.messages_per_step(c).sums - 1, 0) * earlier_sums

    gathered = buckets * gather(c, on_ring * c.width / buckets)
    # During the next step's first forward, only the wait for the first bucket is exposed.
    hidden = np.where(p.gathers_beside, overlap * forward * (1 - 1 / buckets), 0.0)
    gathered = np.maximum(gathered - hidden, gathered / buckets)
    return sums + np.where(c.zero > 0, gathered * p.gather_exposed, 0.0)


def _of_ends(c: Cases, ends: Column, forward: Column, backward: Column, layers: Column) -> Column:
    """Return the exposed time of the gathers at the start of forward and of the reductions at the end of backward.

    `ends` are the weights of embedding and head. FSDP2 waits for both in every micro-batch, unless a pipeline keeps
    them. Compute that hides the messages of layers does not hide these as well.
    """
    p = c.profile
    often = messages.messages_per_step(c)
    sent = messages.gradient_width(c)
    shared, routed = messages.weights_of_layer(c)
    # Weights that the first layer needs; embedding and head are one unit, or one each.
    first = np.where(p.ends_are_units, np.minimum(ends, c.shape.vocabulary * c.shape.hidden / c.tp), ends)
    begins = np.where(np.logical_and(p.is_fsdp2, c.pp == 1), c.micro_batches, 1)
    begins = np.where(c.shards > 1, begins, 0)
    beginning = gather(c, first * c.width)
    of_layer, sum_of_layer = gather(c, _on_ring(c, shared, routed) * c.width), _sum(c, shared * sent, routed * sent)
    in_forward = layers * of_layer * often.forward_gathers / c.micro_batches
    in_backward = layers * (of_layer * often.backward_gathers + sum_of_layer * often.sums) / c.micro_batches
    rest_of_forward = np.maximum(p.gather_overlap * forward - in_forward, 0)
    rest_of_backward = np.maximum(p.gather_overlap * backward - in_backward, 0)
    later_gathers = np.maximum(often.end_gathers - begins, 0)
    later = later_gathers * exposed_part(gather(c, ends * c.width), rest_of_backward)

    of_first_layer = np.where(p.is_paced, exposed_part(sum_of_layer, backward / np.maximum(layers, 1)), sum_of_layer)
    ending = _sum(c, first * sent, 0.0) + of_first_layer
    earlier_ending = np.where(p.is_fsdp2, ending, exposed_part(ending, rest_of_forward))
    earlier_sums = np.maximum(often.sums - 1, 0) * earlier_ending
    return np.asarray(begins * beginning + later + ending + earlier_sums)


def _of_layers_after(c: Cases, weights: messages.Weights) -> Column:
    """Return the time to reduce all layers after the last backward, except the first, which is one of the ends."""
    sent = messages.gradient_width(c)
    shared, routed = messages.weights_of_layer(c)
    summed = _sum(c, weights.shared * sent, weights.routed * sent) - _sum(c, shared * sent, routed * sent)
    copied = (weights.shared + weights.routed) * sent * READ_AND_WRITTEN / c.machine.memory_rate
    return np.where(_sums_after(c), summed + copied, 0.0)


def _sum(c: Cases, shared: Column, routed: Column) -> Column:
    """Return the time to reduce gradients over the ranks that share them: among shards, then over replicas."""
    size = _on_ring(c, shared, routed)
    among_shards = np.where(c.zero == 0, reduce(c, size), scatter(c, size))
    of_shard = shared / c.shards + routed / c.expert_shards * _shorter(_copies(c), c.replicas)
    return among_shards + _reached(c, network.all_reduce, of_shard, "replicas")


def _copies(c: Cases) -> Column:
    """Return the number of copies of an expert's shard: fewer than replicas if ep spans several of them."""
    return np.asarray(c.replicas * np.minimum(c.shards * c.tp / (c.ep * c.expert_tp), 1))


def _is_shared(c: Cases) -> Column:
    return np.asarray((c.shards > 1) | (c.replicas > 1))


def _on_ring(c: Cases, shared: Column, routed: Column) -> Column:
    """Return the bytes of a ring over all shards that equal the messages of shared weights and experts."""
    return np.asarray(shared + routed * _shorter(c.expert_shards, c.shards))


def _shorter(members: Column, all_ranks: Column) -> Column:
    """Return the bytes of a smaller ring relative to one of all ranks, (n-1)/n each."""
    return np.asarray((1 - 1 / np.maximum(members, 1)) / (1 - 1 / np.maximum(all_ranks, 2)))


def gather(c: Cases, size: Column) -> Column:
    """Return the seconds of gathering weights of `size` bytes in total."""
    return _reached(c, network.all_gather, size)


def reduce(c: Cases, size: Column) -> Column:
    """Return the seconds of an all-reduce of gradients."""
    return _reached(c, network.all_reduce, size)


def scatter(c: Cases, size: Column) -> Column:
    """Return the seconds of a reduce-scatter of gradients."""
    return np.where(c.profile.gloo, reduce(c, size), gather(c, size))


def _reached(c: Cases, ring: Callable[[Cases, str, Column], Column], size: Column, axis: str = "shards") -> Column:
    latency = ring(c, axis, 0.0)
    return (ring(c, axis, size) - latency * (1 - c.profile.data_latency)) / c.profile.data_share
