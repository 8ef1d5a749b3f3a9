"""Network: time of collectives and messages between the ranks of an axis.

Ranks are assigned to the axes from the inside out: tp, cp, dp (with its shards and experts), pp. A group inside a node
uses the device's link. A group over several nodes uses the network cards of all its members in each node. Its ring
takes as many steps as it has members, and one step per node crosses the network:

    all-gather, reduce-scatter   size (n-1)/n / rate + n x latency
    all-reduce                   2 x size (n-1)/n / rate + n x 0.7 latency   (trees save some of the steps)
    dispatch to experts          each token is sent once to each node with its experts, then to each expert
"""

from __future__ import annotations

import numpy as np

from usp_prof.extras.planner.cases import Cases
from usp_prof.model.shape import Column

FEW_MEMBERS = 0.92
"""Rings of few members reach less of the link: 1 - 0.92 / n^2 fits nccl-tests of 2, 4 and 8 H100 within 3%."""
TREE_STEPS = 0.7
"""Latency steps of an all-reduce per member; 28 of 40 microseconds fit 16 to 512 H100 (256 MB)."""


def all_gather(c: Cases, axis: str, size: Column) -> Column:
    """Return the seconds of an all-gather or a reduce-scatter of a tensor of `size` bytes in total."""
    members, rate, hop = link(c, axis)
    time = members * hop + size * (members - 1) / members / rate
    return np.where(members > 1, time, 0.0)


def all_reduce(c: Cases, axis: str, size: Column) -> Column:
    """Return the seconds of an all-reduce."""
    members, rate, hop = link(c, axis)
    time = TREE_STEPS * members * hop + 2 * size * (members - 1) / members / rate
    return np.where(members > 1, time, 0.0)


def dispatch(c: Cases, size: Column) -> Column:
    """Return the seconds of sending tokens, `size` bytes per rank, to their experts.

    Inside a node, each chosen expert gets a copy. A node with several of a token's experts gets one copy, over the
    sender's own card.
    """
    members, _, hop = link(c, "ep")
    chosen = c.shape.experts_per_token
    inside = np.minimum(members, np.maximum(c.machine.node / apart(c, "ep"), 1))
    nodes = members / inside
    nodes_reached = nodes * (1 - (1 - 1 / nodes) ** np.maximum(chosen, 1))
    within = size * chosen * (inside - 1) / inside / c.machine.link_rate
    between = size * nodes_reached * (nodes - 1) / nodes / (c.machine.network_rate * c.profile.network_share)
    return np.where(members > 1, np.maximum(within, between) + hop * np.sqrt(members), 0.0)


def send(c: Cases, axis: str, size: Column) -> Column:
    """Return the seconds of one message to the next rank of an axis."""
    members = members_of(c, axis)
    outside = apart(c, axis) * members > c.machine.node
    rate = np.where(outside, c.machine.network_rate * c.profile.network_share, c.machine.link_rate)
    hop = np.where(outside, c.machine.network_latency + c.profile.network_wait, c.machine.link_latency)
    return np.where(members > 1, hop + size / rate, 0.0)


def link(c: Cases, axis: str) -> tuple[Column, Column, Column]:
    """Return the members, the bandwidth and the latency per member of a ring.

    A ring over several nodes leaves each node once, so only one step per node has the latency of the network.
    """
    members, inside = members_of(c, axis), apart(c, axis)
    outside = inside * members > c.machine.node
    inner = c.machine.link_rate * (1 - FEW_MEMBERS / np.maximum(members, 2) ** 2)
    cards = np.maximum(c.machine.node / inside, 1)
    outer = np.minimum(inner, c.machine.network_rate * c.profile.network_share * cards)
    nodes = np.maximum(members / cards, 1)
    across = (nodes * c.machine.network_latency + (members - nodes) * c.machine.link_latency) / members
    hop = np.where(outside, across + c.profile.network_wait, c.machine.link_latency)
    return members, np.where(outside, outer, inner), hop


def apart(c: Cases, axis: str) -> Column:
    """Return the distance in ranks between two adjacent ranks of an axis: the product of all inner axes."""
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
    """Return the number of members of a group."""
    return np.asarray(c.shards if axis == "shards" else getattr(c, axis))
