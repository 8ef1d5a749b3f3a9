"""Step: seconds of a training step, part by part, for many configurations at once.

A step is the sum of:

    micro-batches    layers (compute.py), their exposed messages and the head, on the slowest pipeline rank
    pipeline         filling and draining (filling.py), messages between stages, stalled sends (stalls.py)
    data parallelism exposed messages that do not belong to one layer (data_parallel.py)
    the rest         the optimizer, and a fixed time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner import compute, data_parallel, filling, memory, network, stalls
from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.stages import Stages, stages_of
from usp_prof.model.configuration import SCHEDULES
from usp_prof.model.shape import Column
from usp_prof.schedule import Schedule
from usp_prof.schedule_orders import Kind

STATE_BYTES = 18.0
"""Bytes per weight that AdamW reads and writes: a 16-bit weight; gradient, master weight and moments in float32."""
GRADIENT_DOWN, HOST_BYTES = 4.0, 28.0
"""Bytes per weight with the optimizer on the host: the gradient's copy to the host, and AdamW's memory traffic.

AdamW reads the gradient, the master weight and two moments, and writes the master weight and two moments.
"""
IS_GPIPE = np.array([schedule is Schedule.GPIPE for schedule in SCHEDULES])


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of the busiest rank, one entry per case; the parts add up to `seconds`."""

    seconds: NDArray[np.float64]
    compute: NDArray[np.float64]
    exposed: Mapping[str, NDArray[np.float64]]
    bubble: NDArray[np.float64]
    optimizer: NDArray[np.float64]
    fixed: NDArray[np.float64]
    stall_chance: NDArray[np.float64]
    stall: NDArray[np.float64]
    """Time added by a stall; included in `seconds` if its probability is above `stalls.LIKELY`."""

    @property
    def expected(self) -> NDArray[np.float64]:
        """Step at the mean speed of runs with and without a stall."""
        return np.asarray(stalls.expected(self.seconds, self.stall, self.stall_chance))


def step(
    c: Cases, stages: Stages | None = None, stall_chance: Column | None = None, *, simulates: bool = False
) -> Step:
    """Predict the step of each case; `stages` and `stall_chance` may be passed in, such as during a fit.

    `simulates` simulates schedules that split backward, for which `filling.py` has no exact form.
    """
    stages = stages or stages_of(c)
    stall_chance = stalls.chance(c, stages) if stall_chance is None else stall_chance
    device = compute.layer(c).scaled(c.profile.work_scale)
    times = compute.with_host(c, device)
    head = compute.head(c).scaled(c.profile.work_scale)
    messages, once = _layer_messages(c, times, stages)
    work = times.forward + times.backward
    layer = work + sum(messages.values())
    held_up = stalls.held_up(c, layer)
    layer = layer + held_up
    rank_time = stages.layers * layer + np.where(stages.head, head.forward + head.backward, 0.0)
    busiest = rank_time.argmax(axis=0)
    held = np.take_along_axis(stages.layers, busiest[None], 0)[0]
    most = rank_time.max(axis=0)
    # Messages that are sent once per step do not repeat while stages fill.
    most_filling = most - held * once
    model_time = c.shape.layers * (layer - once) + head.forward + head.backward
    busy = (most - held * held_up) * c.micro_batches
    stall = stalls.seconds(c)
    actions = _work_of_actions(times, head, layer - once)
    filled = filling.closed(c, actions, most_filling, model_time)
    if simulates:
        filled = filling.simulated(c, actions, most_filling, filled)
    window = most * c.micro_batches + _waiting(c, filled)
    window = window + np.where(stall_chance > stalls.LIKELY, stall, 0.0)
    exposed = {axis: value * held * c.micro_batches for axis, value in messages.items()}
    # A layer that waits for its launches, or for messages of other axes, also hides messages.
    hides = _with_waits(c, times, messages["tp"] + messages["ep"] + held_up, messages["cp"])
    # The rank with the most weights hides its messages behind its own layers.
    most_layers = stages.layers.max(axis=0)
    gradients = data_parallel.exposed_per_step(c, stages, most_layers * hides.forward, most_layers * hides.backward)
    compute_time = busy - sum(exposed.values())
    exposed["dp"] = exposed["dp"] + gradients
    optimizer = np.asarray(_optimizer(c, stages))
    fixed = np.broadcast_to(np.asarray(c.profile.fixed, float), window.shape)
    return Step(
        seconds=window + gradients + optimizer + fixed,
        compute=compute_time,
        exposed={axis: np.broadcast_to(value, window.shape) for axis, value in exposed.items()},
        bubble=window - busy,
        optimizer=optimizer,
        fixed=fixed,
        stall_chance=np.broadcast_to(stall_chance, window.shape),
        stall=np.broadcast_to(stall, window.shape),
    )


def _work_of_actions(times: compute.Direction, head: compute.Direction, layer: Column) -> filling.Work:
    """Split work into forward, input gradient and weight gradient; messages (in `layer`) count for the first two."""
    longer = layer / (times.forward + times.backward)
    forward = times.forward * longer
    return filling.Work(
        {Kind.FORWARD: forward, Kind.WEIGHT_GRADIENT: times.weights,
         Kind.INPUT_GRADIENT: layer - forward - times.weights},
        {Kind.FORWARD: head.forward, Kind.WEIGHT_GRADIENT: head.weights,
         Kind.INPUT_GRADIENT: head.backward - head.weights},
    )  # fmt: skip


def _layer_messages(c: Cases, times: compute.Direction, stages: Stages) -> tuple[dict[str, Column], Column]:
    """Return the exposed part of a layer's messages by axis, forward and backward of one micro-batch together.

    The second result is the part of those of dp that are sent once per step, per micro-batch.
    """
    s, p = c.shape, c.profile
    passes = 2.0 + c.recomputed_share
    size = c.tokens * s.hidden * c.width
    # Each direction has two gathers and two scatters with sequence parallelism, two all-reduces without: equal bytes.
    gathered = size * np.where(c.machine.is_narrow, 0.5, 1.0)
    parallel = 2 * network.all_gather(c, "tp", gathered) + 2 * network.all_gather(c, "tp", size)
    plain = 2 * network.all_reduce(c, "tp", size)
    tensor = passes * np.where(c.sequence_parallel, parallel, plain) * p.tensor_exposed
    expert_passes = passes + c.repeats("moe")
    experts = 2 * expert_passes * s.mixed * network.dispatch(c, size / c.tp) * p.expert_exposed
    # The first forward of each pipeline rank and its last backward have no other micro-batch to hide behind.
    alone = np.minimum(c.pp / c.micro_batches, 1.0)
    hidden = data_parallel.exposed_part(experts, times.forward + times.backward)
    experts = np.where(c.expert_overlap, alone * experts + (1 - alone) * hidden, experts)
    ring = _ring(c)
    # Messages of data parallelism also travel while a rank waits for messages of other axes.
    hides = _with_waits(c, times, tensor + experts, ring)
    sharded = data_parallel.exposed_per_layer(c, hides, stages)
    once = sharded - data_parallel.exposed_per_layer(c, hides, stages, in_each=True)
    return {"tp": tensor, "ep": experts, "cp": ring, "dp": sharded}, once


def _with_waits(c: Cases, times: compute.Direction, repeated: Column, ring: Column) -> compute.Direction:
    """Add waits to a layer's times; recomputation waits as long as forward, except for the ring."""
    in_forward = repeated / (2.0 + c.recomputed_share) + ring / 2
    in_backward = repeated + ring - in_forward
    return compute.Direction(times.forward + in_forward, times.backward + in_backward, times.weights)


def _ring(c: Cases) -> Column:
    """Return the exposed time of the ring of keys and values during attention's core; backward sends twice as much."""
    values = c.tokens * c.shape.key_value / c.tp * c.width
    send_time = network.send(c, "cp", values)
    core = compute.core_times(c)
    forward = data_parallel.exposed_part(send_time, core.forward / c.cp)
    backward = data_parallel.exposed_part(2 * send_time, core.backward / c.cp)
    return np.where(c.cp > 1, (c.cp - 1) * (forward + backward) * c.profile.context_exposed, 0.0)


def _waiting(c: Cases, filled: Column) -> Column:
    """Return the pipeline wait of the busiest rank: filling and draining (`filled`), and messages."""
    size = c.tokens * c.shape.hidden * c.width / c.spread
    hop = network.send(c, "pp", size) + c.profile.pipeline_hop
    travel = 2 * (c.pp - 1) * hop
    # In 1F1B's steady state a round trip of p stages has p micro-batches: each waits for two hops (p-1)/p.
    steady = np.where(IS_GPIPE[c.schedule], 0.0, 2 * hop * c.stages_of_rank * (c.pp - 1) / c.pp * (c.micro_batches - 1))
    return np.where(c.pp > 1, filled + travel + steady, 0.0)


def _optimizer(c: Cases, stages: Stages) -> Column:
    """Return the time to read and write the optimizer's bytes once, in the device's memory or its host's.

    With offloading, gradients in float32 go down while the host updates earlier ones and weights come back. These three
    stages overlap over slices, so the slowest one decides.
    """
    weights = memory.weights_to_update(c, stages)
    on_device = weights * 2 * STATE_BYTES / c.machine.memory_rate
    down, up = (weights * size / c.machine.host_link_rate for size in (GRADIENT_DOWN, c.width))
    on_host = np.maximum(np.maximum(down, up), weights * HOST_BYTES / c.machine.host_memory_rate)
    return np.where(c.offload, on_host, on_device)
