"""How long do one layer and the vocabulary's head take on a rank, and what of it is exposed communication?

Compute is FLOP over what the device is taken to reach, attention counted causal. Tensor-parallel gathers and scatters
and expert all-to-alls stand between computations that need them, so that all of their time is exposed; ring attention
and ZeRO-3's gathers run beside compute, and only what is longer than it is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof import conventions
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.planner.messages import gathered, sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.contract import ModelEntry
    from usp_prof.planner.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Work:
    """One direction of one layer (or of the head) for one micro-batch, in ns."""

    compute: float
    exposed: Mapping[str, float]

    @property
    def total(self) -> float:
        """Compute and what is exposed."""
        return self.compute + sum(self.exposed.values())


def layer(model: ModelEntry, configuration: Configuration, cluster: Cluster) -> tuple[Work, Work]:
    """Give forward and backward of one layer."""
    flops = _layer_flops(model, configuration)
    attention = _attention_flops(model, configuration)
    forward = (flops + attention) / cluster.flops * 1e9
    again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: attention, Recompute.FULL: flops + attention}
    backward = 2 * forward + again[configuration.recompute] / cluster.flops * 1e9
    forward, backward = max(forward, cluster.host_layer_ns / 3), max(backward, cluster.host_layer_ns * 2 / 3)
    core = attention / cluster.flops * 1e9
    repeats = 2 if configuration.recompute is Recompute.FULL else 1
    fixed = {"tp": _tensor(model, configuration, cluster), "ep": _experts(model, configuration, cluster)}
    fetch = _fetch(model, configuration, cluster)

    def exposed(compute: float, passes: int, core_time: float, factor: int) -> dict[str, float]:
        found = {axis: time * passes for axis, time in fixed.items()}
        found["cp"] = _ring(model, configuration, cluster, core_time, factor)
        found["dp"] = max(0.0, fetch - compute)
        return {axis: time for axis, time in found.items() if time}

    return Work(forward, exposed(forward, 1, core, 1)), Work(backward, exposed(backward, repeats, 2 * core, 2))


def head(model: ModelEntry, configuration: Configuration, cluster: Cluster) -> tuple[Work, Work]:
    """Give forward and backward of the product with the vocabulary."""
    flops = 2.0 * _tokens(model, configuration) * conventions.vocabulary_parameters(model) / configuration.tp
    forward = flops / cluster.flops * 1e9
    return Work(forward, {}), Work(2 * forward, {})


def message_bytes(model: ModelEntry, configuration: Configuration) -> float:
    """Count the bytes that a pipeline stage hands on for one micro-batch; sequence parallelism shards them."""
    return _tokens(model, configuration) * model.hidden * width(configuration) / configuration.tp


def width(configuration: Configuration) -> int:
    """Give the bytes of an element in flight."""
    return 4 if configuration.dtype == "fp32" else 2


def _tokens(model: ModelEntry, configuration: Configuration) -> float:
    return configuration.micro_batch * model.sequence / configuration.cp


def _layer_flops(model: ModelEntry, configuration: Configuration) -> float:
    weights = conventions.mean_layer(model).multiplying
    return 2.0 * weights * _tokens(model, configuration) / configuration.tp


def _attention_flops(model: ModelEntry, configuration: Configuration) -> float:
    """Scores and weighted values of a causal mask, and the products on recurrences' states: a layer's mean, forward."""
    token = conventions.attention_flop_per_token(model, conventions.CAUSAL) or 0.0
    token += conventions.recurrence_flop_per_token(model)
    return token / 3 / model.layers * _tokens(model, configuration) / configuration.tp


def _tensor(model: ModelEntry, configuration: Configuration, cluster: Cluster) -> float:
    """Two gathers and two scatters in each direction, of the hidden states of all tokens."""
    size = _tokens(model, configuration) * model.hidden * width(configuration)
    return 4 * gathered(cluster, configuration, "tp", size)


def _experts(model: ModelEntry, configuration: Configuration, cluster: Cluster) -> float:
    """Dispatch and combine of one direction, in the layers that have experts."""
    sparse = conventions.expert_layers(model) / model.layers
    size = message_bytes(model, configuration) * model.experts_per_token
    return 2 * sparse * gathered(cluster, configuration, "ep", size)


def _ring(model: ModelEntry, configuration: Configuration, cluster: Cluster, core: float, factor: int) -> float:
    """Send keys and values round while attention works on those that are there; backward, their gradients too."""
    share = (model.kv_heads or model.heads) / model.heads if model.heads else 1.0
    values = 2 * _tokens(model, configuration) * conventions.attention_width(model) * share / configuration.tp
    one = sent(cluster, configuration, "cp", factor * values * width(configuration))
    return (configuration.cp - 1) * max(0.0, one - core / configuration.cp)


def _fetch(model: ModelEntry, configuration: Configuration, cluster: Cluster) -> float:
    """Gather the weights of one layer, where ZeRO-3 has sharded them."""
    if configuration.zero < 3:
        return 0.0
    layer = conventions.mean_layer(model)
    weights = layer.shared + layer.routed / configuration.ep
    return gathered(cluster, configuration, "shards", weights * width(configuration) / configuration.tp)
