"""Data parallelism: when each of its messages may start, what of them compute hides, and what is left to see.

    ZeRO-0, -1, -2   a bucket of gradients starts once backward has made it, and travels beside what is left of
                     backward; buckets go one after another. The gather of new weights follows the optimizer, where no
                     compute hides it. ZeRO-2 keeps no whole gradients from one micro-batch to the next, and so sums
                     those of each, beside its backward and the next forward
    ZeRO-3           a layer's weights travel while another layer computes, in each pass of each micro-batch; its
                     gradients do while the layer before it has its backward. Nothing computes beside the first
                     gathers of a step, nor beside its last sums

So ZeRO-3 sends more in all, and may yet show less. Ranks of gloo compute on their host, which cannot run ahead: each
pass waits for its first layer. A reduce-scatter of gloo is an all-reduce, and goes round the ring the other way than
gathers: it takes none of their bandwidth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.planner import cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.model.shape import Column
    from usp_prof.planner.cases import Cases
    from usp_prof.planner.compute import Direction
    from usp_prof.planner.stages import Stages

LEAST_EXPOSED = 0.05
"""Share of a message that shows even beside long compute: it has to start, and to be waited for."""
READ_AND_WRITTEN = 2
"""Passes over memory of a copy: weights are copied out of what was gathered, gradients into what is sent."""


def beside(message: Column, compute: Column) -> Column:
    """Give what shows of a message that travels beside compute."""
    return np.maximum(message - compute, LEAST_EXPOSED * np.asarray(message))


def in_a_layer(c: Cases, times: Direction, stages: Stages) -> Column:
    """Give what ZeRO-3 shows in the mean layer, forward and backward of one micro-batch together."""
    p = c.profile
    shared, routed = _of_layer(c)
    weights, sent = _on_ring(c, shared, routed), _gradient_width(c)
    gathered, summed = gather(c, weights * c.width), _sum(c, shared * sent, routed * sent)
    before_forward, before_backward = p.gather_overlap * times.forward, p.gather_overlap * times.backward
    on_one_link = beside(gathered + summed, before_backward)
    on_two_links = np.maximum(beside(gathered, before_backward), beside(summed, times.backward))
    shown = beside(gathered, before_forward) + np.where(p.gloo, on_two_links, on_one_link)
    # Layers of a pass: the first of them is gathered when it is needed, unless the host runs ahead.
    of_pass = np.maximum(stages.layers.max(axis=0) / c.stages_of_rank, 1)
    shown = np.where(p.gloo, (2 * gathered + (of_pass - 1) * shown) / of_pass, shown)
    copied = weights * (2 * c.width + sent) * READ_AND_WRITTEN / c.machine.memory_rate
    copied = np.where(c.shards > 1, copied, 0.0)
    return np.where((c.zero == 3) & _is_shared(c), (shown + copied) * p.sharded_exposed, 0.0)


def in_a_step(c: Cases, stages: Stages, forward: Column, backward: Column) -> Column:
    """Give what shows once a step, beside what `in_a_layer` gives; of the first forward and the last backward."""
    p = c.profile
    held = stages.layers.max(axis=0)
    vocabulary = c.shape.vocabulary * c.shape.hidden / c.tp
    shared, routed = _of_layer(c)
    shared, routed = held * shared + vocabulary, held * routed
    weights, sent = _on_ring(c, shared, routed), _gradient_width(c)
    summed = shared + routed * _shorter(c.expert_shards * _copies(c), c.shards * c.replicas)
    buckets = np.maximum(summed * sent / p.bucket_bytes, p.least_buckets)
    one = _sum(c, shared * sent / buckets, routed * sent / buckets)
    # The first bucket waits for its share of backward.
    left = np.maximum(buckets * one - np.minimum(p.data_overlap, 1.0) * backward * (1 - 1 / buckets), one)
    # ZeRO-2: the sums of an earlier micro-batch go on beside the forward of the next.
    between = beside(buckets * one, np.minimum(p.data_overlap, 1.0) * (forward + backward))
    sums_each = np.logical_and(c.zero == 2, np.logical_not(p.sums_once))
    left = left + np.where(sums_each, (c.micro_batches - 1) * between, 0.0)
    gathered = buckets * gather(c, weights * c.width / buckets)
    # Beside the next step's first forward, the first bucket is waited for.
    hidden = np.where(p.gathers_beside, np.minimum(p.data_overlap, 1.0) * forward * (1 - 1 / buckets), 0.0)
    gathered = np.maximum(gathered - hidden, gathered / buckets)
    after = left + np.where(c.zero > 0, gathered * p.gather_exposed, 0.0)
    ends = _ends_of_sharded(c, vocabulary) * p.sharded_exposed
    return np.where(_is_shared(c), np.where(c.zero == 3, ends, after * p.data_exposed), 0.0)


def _ends_of_sharded(c: Cases, vocabulary: Column) -> Column:
    """ZeRO-3: the gathers that begin a step and the sums that end it, of a layer and of embedding or head."""
    shared, routed = _of_layer(c)
    of_layer = gather(c, _on_ring(c, shared, routed) * c.width)
    first = gather(c, vocabulary * c.width) + np.where(c.profile.gloo, 0.0, of_layer)
    sent = _gradient_width(c)
    last = _sum(c, vocabulary * sent, 0.0) + _sum(c, shared * sent, routed * sent)
    return first + last


def _sum(c: Cases, shared: Column, routed: Column) -> Column:
    """Sum gradients over the ranks that share them: among shards, then each shard over its replicas."""
    size = _on_ring(c, shared, routed)
    among_shards = np.where(c.zero == 0, reduce(c, size), scatter(c, size))
    of_shard = shared / c.shards + routed / c.expert_shards * _shorter(_copies(c), c.replicas)
    return among_shards + _reached(c, cluster.all_reduce, of_shard, "replicas")


def _copies(c: Cases) -> Column:
    """Count the copies of an expert's shard: fewer than replicas where the ranks of ep lie in several of them."""
    return np.asarray(c.replicas * np.minimum(c.shards * c.tp / (c.ep * c.expert_tp), 1))


def _is_shared(c: Cases) -> Column:
    return np.asarray((c.shards > 1) | (c.replicas > 1))


def _of_layer(c: Cases) -> tuple[Column, Column]:
    """Count the weights of a layer on a rank: those that all tokens meet, and its experts'."""
    return c.shape.shared_parameters / c.tp, c.shape.routed_parameters / c.ep / c.expert_tp


def _on_ring(c: Cases, shared: Column, routed: Column) -> Column:
    """Give what a ring over all shards would have to carry to send as much as shared weights and experts do."""
    return np.asarray(shared + routed * _shorter(c.expert_shards, c.shards))


def _shorter(members: Column, of: Column) -> Column:
    """Give what a ring of fewer members sends over what one of all sends, (n-1)/n each."""
    return np.asarray((1 - 1 / np.maximum(members, 1)) / (1 - 1 / np.maximum(of, 2)))


def _gradient_width(c: Cases) -> Column:
    """Give the bytes of a gradient on its way: those of a weight at least."""
    return np.asarray(np.maximum(c.profile.sent_gradient_bytes, c.width))


def gather(c: Cases, size: Column) -> Column:
    """Give the seconds of gathering weights of `size` bytes in all."""
    return _reached(c, cluster.all_gather, size)


def reduce(c: Cases, size: Column) -> Column:
    """Give the seconds of an all-reduce of gradients."""
    return _reached(c, cluster.all_reduce, size)


def scatter(c: Cases, size: Column) -> Column:
    """Give the seconds of a reduce-scatter of gradients."""
    return np.where(c.profile.gloo, reduce(c, size), gather(c, size))


def _reached(c: Cases, ring: Callable[[Cases, str, Column], Column], size: Column, axis: str = "shards") -> Column:
    latency = ring(c, axis, 0.0)
    return (ring(c, axis, size) - latency * (1 - c.profile.data_latency)) / c.profile.data_share
