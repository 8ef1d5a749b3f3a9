"""How long does a collective take on a cluster? Its hops' latency, and bytes over the slowest link of its ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.cluster import Cluster

INNER_TO_OUTER = ("tp", "cp", "dp", "pp")
"""In which order the ranks of a node are dealt to the axes: neighbours talk most."""


def gathered(cluster: Cluster, configuration: Configuration, axis: str, size: float) -> float:
    """Give the time of an all-gather or a reduce-scatter in ns; `size` is the whole tensor's bytes."""
    members = _members(configuration, axis)
    if members < 2:
        return 0.0
    rate, hop = link(cluster, configuration, axis)
    return (members - 1) * hop + size * (members - 1) / members / rate * 1e9


def reduced(cluster: Cluster, configuration: Configuration, axis: str, size: float) -> float:
    """Give the time of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * gathered(cluster, configuration, axis, size)


def sent(cluster: Cluster, configuration: Configuration, axis: str, size: float) -> float:
    """Give the time of one message to the neighbour on an axis."""
    if _members(configuration, axis) < 2:
        return 0.0
    rate, hop = link(cluster, configuration, axis, ring=False)
    return hop + size / rate * 1e9


def link(cluster: Cluster, configuration: Configuration, axis: str, *, ring: bool = True) -> tuple[float, float]:
    """Give the rate and the latency of a hop. A ring over nodes enters each by the cards of all its members there."""
    inside = _inside(configuration, axis)
    extent = inside * _members(configuration, axis)
    inner = cluster.link_rate * cluster.link_share
    if extent <= cluster.devices_per_node:
        return inner, cluster.node_latency_ns
    together = max(1, cluster.devices_per_node // inside) if ring else 1
    return min(inner, cluster.network_rate * cluster.link_share * together), cluster.network_latency_ns


def _inside(configuration: Configuration, axis: str) -> int:
    """Count the neighbours that belong to axes further in, so that members of this axis lie that far apart."""
    degrees, apart = configuration.degrees(), 1
    for inner in INNER_TO_OUTER:
        if inner == axis or (axis in ("ep", "shards") and inner == "cp"):
            break
        apart *= degrees[inner]
    return apart


def _members(configuration: Configuration, axis: str) -> int:
    return configuration.shards if axis == "shards" else configuration.degrees()[axis]
