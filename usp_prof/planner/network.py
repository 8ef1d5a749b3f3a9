"""Network: how long a collective takes, by the members of its group, where they lie, and the algorithm.

Ranks of a node are dealt to the axes from the inside out: tp, cp, dp (with its shards and experts), pp. A group inside
a node has the device's link. One over several nodes enters each node through the cards of all its members there, and
its ring takes as many steps as it has members, each as slow as the slowest hop:

    all-gather, reduce-scatter   size (n-1)/n / rate + n x latency
    all-reduce                   2 x size (n-1)/n / rate + n x 0.7 latency   (trees spare some of the steps)
    dispatch to experts          each node that holds a token's experts is sent it once; inside, each expert
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from usp_prof.model.shape import Column
    from usp_prof.planner.cases import Cases

FEW_MEMBERS = 0.92
"""Rings of few members reach less of the link: 1 - 0.92 / n^2 fits nccl-tests of 2, 4 and 8 H100 within 3 %."""
TREE_STEPS = 0.7
"""Steps of an all-reduce over its members: what fits 16 to 512 H100 (256 MB) is 28 of 40 microseconds."""


def all_gather(c: Cases, axis: str, size: Column) -> Column:
    """Give the seconds of an all-gather or a reduce-scatter of a tensor of `size` bytes in all."""
    members, rate, hop = link(c, axis)
    time = members * hop + size * (members - 1) / members / rate
    return np.where(members > 1, time, 0.0)


def all_reduce(c: Cases, axis: str, size: Column) -> Column:
    """Give the seconds of an all-reduce."""
    members, rate, hop = link(c, axis)
    time = TREE_STEPS * members * hop + 2 * size * (members - 1) / members / rate
    return np.where(members > 1, time, 0.0)


def dispatch(c: Cases, size: Column) -> Column:
    """Give the seconds of sending each token of `size` bytes a rank to its experts.

    Inside a node each chosen expert gets its copy; a node that holds several of a token's experts is sent one, by the
    sender's own card.
    """
    members, _, hop = link(c, "ep")
    chosen = c.shape.experts_per_token
    inside = np.minimum(members, np.maximum(c.machine.node / apart(c, "ep"), 1))
    nodes = members / inside
    met = nodes * (1 - (1 - 1 / nodes) ** np.maximum(chosen, 1))
    within = size * chosen * (inside - 1) / inside / c.machine.link_rate
    between = size * met * (nodes - 1) / nodes / (c.machine.network_rate * c.profile.network_share)
    return np.where(members > 1, np.maximum(within, between) + hop * np.sqrt(members), 0.0)


def send(c: Cases, axis: str, size: Column) -> Column:
    """Give the seconds of one message to the neighbour on an axis."""
    members = members_of(c, axis)
    outside = apart(c, axis) * members > c.machine.node
    rate = np.where(outside, c.machine.network_rate * c.profile.network_share, c.machine.link_rate)
    hop = np.where(outside, c.machine.network_latency * c.profile.network_hop, c.machine.link_latency)
    return np.where(members > 1, hop + size / rate, 0.0)


def link(c: Cases, axis: str) -> tuple[Column, Column, Column]:
    """Give members, rate, and latency of a step of a ring."""
    members, inside = members_of(c, axis), apart(c, axis)
    outside = inside * members > c.machine.node
    inner = c.machine.link_rate * (1 - FEW_MEMBERS / np.maximum(members, 2) ** 2)
    cards = np.maximum(c.machine.node / inside, 1)
    outer = np.minimum(inner, c.machine.network_rate * c.profile.network_share * cards)
    hop = np.where(outside, c.machine.network_latency * c.profile.network_hop, c.machine.link_latency)
    return members, np.where(outside, outer, inner), hop


def apart(c: Cases, axis: str) -> Column:
    """Count the ranks between neighbours on an axis: those of all axes further in."""
    if axis == "tp":
        return np.asarray(1)
    if axis == "cp":
        return np.asarray(c.tp)
    if axis in ("ep", "shards"):
        return np.asarray(c.tp)
    if axis == "replicas":
        return np.asarray(c.tp * c.shards)
    return np.asarray(c.tp * c.cp * c.dp)


def members_of(c: Cases, axis: str) -> Column:
    """Count the members of a group."""
    return np.asarray(c.shards if axis == "shards" else getattr(c, axis))
