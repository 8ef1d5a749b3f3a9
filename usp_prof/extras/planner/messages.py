"""Messages of data parallelism: number and bytes of the messages of weights and gradients.

`docs/reference/planner.md` has the number of each message per step of m micro-batches, by trainer and ZeRO stage, and
its sources. The ends are the embedding, the last norm and the head.

Our trainer gathers the ends once, and adds gradients up before it sums them. In Megatron-FSDP, the ends are no unit,
and so never freed; gradients are reduced in every backward. In FSDP2, each backward ends with its weights freed and its
gradients reduced; its root, which holds what is no unit of its own, is kept from forward to backward. torchtitan makes
embedding and head units. PyTorch's pipelines keep complete weights after a backward and reduce after the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.profiles import Profile
from usp_prof.extras.planner.stages import Stages
from usp_prof.model.configuration import Columns
from usp_prof.model.footprint import Stage, parameters
from usp_prof.model.shape import Column


@dataclass(frozen=True, slots=True)
class Times:
    """Number of each message per step; one entry per case."""

    forward_gathers: Column
    """Gathers of a layer's weights before its forward; under ZeRO-1 and in buckets, after the optimizer."""
    backward_gathers: Column
    end_gathers: Column
    """Gathers of the weights of embedding and head."""
    sums: Column
    """Reductions of gradients, of layers and ends alike."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a pipeline rank before data-parallel sharding: those of its layers, and of its ends."""

    shared: Column
    """Weights of all its layers that every token uses."""
    routed: Column
    """Weights of its experts."""
    ends: Column


def messages_per_step(c: Cases) -> Times:
    """Return the number of messages of each kind per step."""
    p = c.profile
    micro_batches = np.asarray(c.micro_batches, float)
    is_fsdp2 = np.asarray(p.is_fsdp2) > 0
    in_pipeline = is_fsdp2 & (c.pp > 1)
    every = np.where(in_pipeline, 1.0, micro_batches)
    # ZeRO-3 in PyTorch's pipelines: the next forward reuses the weights gathered in backward.
    forward = np.where(c.zero == 3, every, np.where((c.zero == 2) & is_fsdp2, every, 1.0))
    backward = np.where(c.zero == 3, micro_batches, 0.0)
    ends = np.where(is_fsdp2 & (c.zero >= 2), every, 1.0)
    ends = ends + np.where(is_fsdp2 & (np.asarray(p.ends_are_units) > 0), backward, 0.0)
    sums = sums_per_step(p, c)
    has_shards = (c.zero > 0) & (c.shards > 1)
    return Times(
        forward_gathers=np.where(has_shards, forward, 0.0),
        backward_gathers=np.where(has_shards, backward, 0.0),
        end_gathers=np.where(has_shards, ends, 0.0),
        sums=np.where((c.shards > 1) | (c.replicas > 1), sums, 0.0),
    )


def sums_per_step(p: Profile, c: Columns) -> Column:
    """Return the number of gradient reductions per step; if one, micro-batches are added up unreduced."""
    in_pipeline = np.logical_and(p.is_fsdp2, c.pp > 1)
    sums_each = (c.zero >= 2) & np.logical_not(p.sums_once) & np.logical_not(in_pipeline)
    return np.where(sums_each, c.micro_batches, 1.0)


def goes_by_layer(c: Cases) -> NDArray[np.bool_]:
    """Mark the cases in which weights and gradients are sent layer by layer, not in buckets."""
    return np.asarray((c.zero == 3) | ((c.zero == 2) & (np.asarray(c.profile.layer_by_layer) > 0)))


def weights_of_layer(c: Cases) -> tuple[Column, Column]:
    """Return the number of a layer's weights on a rank: those that all tokens use, and its experts'."""
    return c.shape.shared_parameters / c.tp, c.shape.routed_parameters / c.ep / c.expert_tp


def weights_of_rank(c: Cases, layers: Column, embedding: Column, head: Column) -> Weights:
    """Return the weights of a rank with this number of layers, and with these ends."""
    shared, routed = weights_of_layer(c)
    matrices, _ = parameters(c.shape, c, Stage(0.0, embedding, head, 1.0))
    norm = np.where(head, c.shape.hidden, 0.0)
    return Weights(layers * shared, layers * routed, matrices + norm)


def weights_of_fullest_rank(c: Cases, stages: Stages) -> Weights:
    """Return the weights of the pipeline rank with the most of them."""
    rows = [weights_of_rank(c, *row) for row in zip(stages.layers, stages.embedding, stages.head, strict=True)]
    columns = {
        name: np.stack([np.broadcast_to(np.asarray(getattr(row, name), float), c.dp.shape) for row in rows])
        for name in Weights.__slots__
    }
    fullest = np.sum(list(columns.values()), axis=0).argmax(axis=0)
    return Weights(**{name: np.take_along_axis(column, fullest[None], 0)[0] for name, column in columns.items()})


def gathered_bytes(c: Cases, weights: Weights) -> Column:
    """Return the bytes of all weights gathered per step from a rank's shards."""
    often = messages_per_step(c)
    of_layers = (weights.shared + weights.routed) * (often.forward_gathers + often.backward_gathers)
    return np.asarray((of_layers + weights.ends * often.end_gathers) * c.width)


def summed_bytes(c: Cases, weights: Weights) -> Column:
    """Return the bytes of all gradients that a rank reduces per step with the others."""
    everything = weights.shared + weights.routed + weights.ends
    return np.asarray(everything * messages_per_step(c).sums * gradient_width(c))


def gradient_width(c: Cases) -> Column:
    """Return the bytes of a gradient in messages: at least those of a weight."""
    return np.asarray(np.maximum(c.profile.sent_gradient_bytes, c.width))
