"""Cases: predictions to compute, as columns: configurations, the model, the machine and the trainer's profile.

All planner formulas use these columns, so that one configuration, a table of a thousand and a search of a million share
the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.cluster import Cluster
from usp_prof.extras.planner.profiles import Profile, expert_tp_of, gradient_bytes_of
from usp_prof.model.configuration import Columns, Configuration, columns_of
from usp_prof.model.shape import Column, Shape


@dataclass(frozen=True, slots=True)
class Machine:
    """A cluster as numbers: rates per second and device in one direction, and latencies in seconds."""

    peak: Column
    core_peak: Column
    """Peak of the type used by attention's core and the head if products are 8 bits wide."""
    room_bytes: Column
    """Memory available to a configuration."""
    product_bytes: Column
    memory_rate: Column
    link_rate: Column
    network_rate: Column
    node: Column
    link_latency: Column
    network_latency: Column
    efficiency: Column
    """Share of the peak that a large matrix product reaches alone."""
    core_efficiency: Column
    host_link_rate: Column
    """Rate between a device and its host's memory."""
    host_memory_rate: Column
    """Rate at which an optimizer reads and writes one device's share of its host's memory."""

    @property
    def is_narrow(self) -> Column:
        """Whether products are computed in 8 bits or fewer."""
        return np.asarray(self.product_bytes) < 2


@dataclass(frozen=True, slots=True)
class Cases(Columns):
    """Configurations as columns, with the model, machine and trainer of each."""

    shape: Shape
    machine: Machine
    profile: Profile

    @property
    def tokens(self) -> Column:
        """Tokens of a micro-batch on one rank of cp."""
        return np.asarray(self.micro_batch * self.shape.sequence / self.cp)

    @property
    def recomputed_share(self) -> Column:
        """Share of the layers that are fully recomputed in backward, 0..1."""
        layers = self.shape.layers
        return self.recomputed(layers, self.stages_of_rank * self.pp) / layers


def machine_of(cluster: Cluster) -> Machine:
    """Return a cluster as numbers."""
    return Machine(
        peak=cluster.peak_flops,
        core_peak=cluster.core_flops or cluster.peak_flops,
        room_bytes=cluster.room_bytes,
        product_bytes=cluster.product_bytes,
        memory_rate=cluster.memory_rate,
        link_rate=cluster.link_rate * cluster.link_share,
        network_rate=cluster.network_rate,
        node=cluster.devices_per_node,
        link_latency=cluster.node_latency_ns / 1e9,
        network_latency=cluster.network_latency_ns / 1e9,
        efficiency=cluster.efficiency,
        core_efficiency=cluster.core_efficiency,
        host_link_rate=cluster.host_link_rate,
        host_memory_rate=cluster.host_memory_rate,
    )


def cases_of(shape: Shape, machine: Machine, profile: Profile, configurations: Sequence[Configuration]) -> Cases:
    """Combine configurations with a model, machine and profile."""
    return with_columns(shape, machine, profile, columns_by(profile, configurations, machine.product_bytes))


def columns_by(profile: Profile, configurations: Sequence[Configuration], product_bytes: Column) -> Columns:
    """Return configurations as columns; settings of 0 are as the profile's trainer has them."""
    columns = columns_of(configurations, gradient_bytes_of(profile, product_bytes), profile.loss_chunks)
    return replace(columns, etp=np.asarray(expert_tp_of(profile, columns.etp, columns.ep)))


def rows_of(c: Columns, rows: NDArray[np.int64]) -> Columns:
    """Return selected rows of the configuration columns."""
    return Columns(**{field.name: np.asarray(getattr(c, field.name))[rows] for field in fields(Columns)})


def selected(c: Cases, rows: NDArray[np.int64]) -> Cases:
    """Return selected cases of one model, machine and profile."""
    return with_columns(c.shape, c.machine, c.profile, rows_of(c, rows))


def concatenated(*parts: Columns) -> Columns:
    """Concatenate configuration columns."""
    names = [field.name for field in fields(Columns)]
    return Columns(**{name: np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in names})


def with_columns(shape: Shape, machine: Machine, profile: Profile, columns: Columns) -> Cases:
    """Combine columns with a model, machine and profile."""
    values = {field.name: getattr(columns, field.name) for field in fields(Columns)}
    return Cases(**values, shape=shape, machine=machine, profile=profile)
