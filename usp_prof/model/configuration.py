"""Configuration: the distribution of a model over devices, and everything else that determines memory and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.model.shape import Column
from usp_prof.schedule import Schedule, schedule_by_name


class Recompute(StrEnum):
    """Activations that backward recomputes instead of storing."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


MODULES = ("core_attn", "mla_up_proj", "layernorm", "mlp", "shared_experts", "moe", "moe_act")
"""Parts of a layer that selective recomputation can repeat, by Megatron's names (`--recompute-modules`)."""


class Offload(StrEnum):
    """State kept in host memory instead of device memory."""

    NONE = "none"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One training configuration: degrees of the axes, ZeRO stage, micro-batch size and number of micro-batches.

    `ep` is part of `dp` x `cp`, as in torchtitan and Megatron, so it needs no devices of its own. `micro_batches` is
    the number per data-parallel rank and step. `replicas` is the number of copies of hybrid sharding; with 1, ZeRO
    shards over all of dp x cp.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    recompute: Recompute = Recompute.NONE
    dtype: str = "bf16"
    etp: int = 0
    """Tensor-parallel degree of each expert; 0: all of tp if ep fits in dp x cp, otherwise 1."""
    replicas: int = 1
    sequence_parallel: bool = True
    fused_attention: bool = True
    gradient_bytes: float = 0.0
    """Bytes per gradient in memory; 0: as the trainer does."""
    optimizer_bytes: float = 0.0
    """Bytes of optimizer state per weight; 0: a float32 copy and two float32 moments."""
    loss_chunks: int = 0
    """Chunks of tokens for which logits and loss are computed one after the other; 0: as the trainer does."""
    recompute_layers: int = 0
    """Layers per stage that full recomputation repeats (Megatron's method `block`); 0: all of them."""
    recompute_group: int = 1
    """Layers that share one stored input and are recomputed together (Megatron's method `uniform`)."""
    recompute_modules: tuple[str, ...] = ()
    """The `MODULES` that selective recomputation repeats; empty: the attention core."""
    offload_layers: int = 0
    """Layers per rank whose activations wait in host memory for backward (Megatron's `cpu_offloading_num_layers`)."""
    offload: Offload = Offload.NONE
    expert_overlap: bool = False
    """Whether tokens are sent to experts during the compute of another micro-batch (Megatron's
    `overlap_moe_expert_parallel_comm`)."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def batch(self) -> int:
        """Number of sequences per step over all ranks."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def shards(self) -> int:
        """Number of ranks over which ZeRO shards a parameter outside the experts."""
        return self.dp * self.cp // self.replicas

    @property
    def stages(self) -> int:
        """Number of pipeline stages; V-shaped schedules always have two per rank."""
        schedule = schedule_by_name(self.schedule)
        is_folded = schedule is not None and schedule.traits.is_v_shaped and self.pp > 1
        return self.pp * (2 if is_folded else self.chunks)

    def __str__(self) -> str:
        """Format only the settings that differ from the default."""
        axes = [f"{name}{size}" for name, size in self.degrees().items() if size > 1] or ["1 device"]
        words = [" ".join(axes), f"{self.micro_batches}x{self.micro_batch}"]
        if self.zero:
            words.append(f"ZeRO-{self.zero}" + (f" x {self.replicas} replicas" if self.replicas > 1 else ""))
        if self.tp > 1 and not self.sequence_parallel:
            words.append("no sequence parallelism")
        if self.pp > 1:
            words.append(self.schedule + (f" v={self.chunks}" if self.chunks > 1 else ""))
        if self.expert_overlap:
            words.append("expert exchange overlapped")
        if self.recompute is not Recompute.NONE:
            some = f" of {self.recompute_layers} layers per stage" if self.recompute_layers else ""
            together = f", {self.recompute_group} layers at a time" if self.recompute_group > 1 else ""
            modules = f" ({', '.join(self.recompute_modules)})" if self.recompute_modules else ""
            words.append(f"recompute {self.recompute}{modules}{some}{together}")
        if self.offload_layers:
            words.append(f"activations of {self.offload_layers} layers offloaded")
        if self.offload is not Offload.NONE:
            words.append(f"{self.offload} offloaded")
        return ", ".join(words)

    def degrees(self) -> dict[str, int]:
        """Return the degree of each axis."""
        return {"dp": self.dp, "cp": self.cp, "tp": self.tp, "pp": self.pp, "ep": self.ep}


SCHEDULES = tuple(Schedule)
RECOMPUTES = tuple(Recompute)
NONE, SELECTIVE, FULL = range(3)
"""Indices in `RECOMPUTES`."""
ENDS = 2
"""Number of ends (embedding and head) that a pipeline distributes besides layers."""
IS_LOOPED = np.array([schedule.traits.is_looped for schedule in SCHEDULES])
IS_V_SHAPED = np.array([schedule.traits.is_v_shaped for schedule in SCHEDULES])


@dataclass(frozen=True, slots=True)
class Columns:
    """Configurations as columns: each field is an array with one entry per configuration."""

    dp: NDArray[Any]
    tp: NDArray[Any]
    cp: NDArray[Any]
    pp: NDArray[Any]
    ep: NDArray[Any]
    etp: NDArray[Any]
    zero: NDArray[Any]
    micro_batch: NDArray[Any]
    micro_batches: NDArray[Any]
    chunks: NDArray[Any]
    schedule: NDArray[Any]
    """Index in `SCHEDULES`."""
    recompute: NDArray[Any]
    """Index in `RECOMPUTES`: 0 none, 1 selective, 2 full."""
    width: NDArray[Any]
    """Bytes of an activation and of a weight."""
    sequence_parallel: NDArray[Any]
    fused_attention: NDArray[Any]
    replicas: NDArray[Any]
    gradient_bytes: NDArray[Any]
    optimizer_bytes: NDArray[Any]
    """Bytes of optimizer state per weight; 0: the default."""
    loss_chunks: NDArray[Any]
    recompute_layers: NDArray[Any]
    recompute_group: NDArray[Any]
    recompute_modules: NDArray[Any]
    """Sum of 2^i for the i-th of `MODULES`; 0: the default."""
    offload_layers: NDArray[Any]
    offload: NDArray[Any]
    """Whether the optimizer is in host memory."""
    expert_overlap: NDArray[Any]

    @property
    def stages_of_rank(self) -> NDArray[Any]:
        """Return the number of stages per pipeline rank; V-shaped schedules always have two."""
        return np.where(IS_V_SHAPED[self.schedule] & (self.pp > 1), 2, self.chunks)

    def repeats(self, module: str) -> NDArray[np.bool_]:
        """Return whether selective recomputation repeats one of `MODULES`."""
        modules = np.where(self.recompute_modules > 0, self.recompute_modules, code_of_modules(MODULES[:1]))
        return np.asarray((self.recompute == SELECTIVE) & (modules & code_of_modules((module,)) > 0))

    def recomputed(self, layers: Column, stages: Column) -> NDArray[Any]:
        """Return how many of `layers`, in this number of stages, are fully recomputed."""
        in_part = np.minimum(self.recompute_layers * stages, layers)
        return np.where(self.recompute == FULL, np.where(self.recompute_layers > 0, in_part, layers), 0.0)

    @property
    def spread(self) -> NDArray[Any]:
        """Return the number of tp ranks over which the parts outside matrix products are divided."""
        return np.where(self.sequence_parallel, self.tp, 1)

    @property
    def expert_tp(self) -> NDArray[Any]:
        """Return the number of tp ranks over which each expert is divided."""
        return np.where(self.etp > 0, self.etp, np.where(self.dp * self.cp % self.ep == 0, self.tp, 1))

    @property
    def expert_shards(self) -> NDArray[Any]:
        """Return the number of ranks over which an expert's parameter is replicated and can be sharded."""
        return np.asarray(np.maximum(self.shards * self.tp / (self.ep * self.expert_tp), 1))

    @property
    def shards(self) -> NDArray[Any]:
        """Return the number of ranks over which ZeRO shards: dp x cp, divided by replicas."""
        return np.asarray(self.dp * self.cp / self.replicas)

    @property
    def devices(self) -> NDArray[Any]:
        """Return the number of devices."""
        return np.asarray(self.dp * self.tp * self.cp * self.pp)


INTEGERS = (
    "dp", "tp", "cp", "pp", "ep", "etp", "zero", "micro_batch", "micro_batches", "chunks", "replicas",
    "recompute_layers", "recompute_group", "loss_chunks", "offload_layers",
)  # fmt: skip
"""Fields that are integers in configurations and in columns."""


def code_of_modules(modules: Sequence[str]) -> int:
    """Return modules as one number, for `Columns.recompute_modules`."""
    return sum(1 << MODULES.index(module) for module in modules)


def columns_of(
    configurations: Sequence[Configuration], gradient_bytes: Column = 0.0, loss_chunks: Column = 1
) -> Columns:
    """Return configurations as columns, with a trainer's bytes per gradient (0: as wide as weights) and loss chunks."""

    def column(value: Callable[[Configuration], Any], kind: type = int) -> NDArray[Any]:
        return np.array([value(configuration) for configuration in configurations], kind)

    flags = ("sequence_parallel", "fused_attention", "expert_overlap")
    integers = {name: column(attrgetter(name)) for name in INTEGERS}
    chunks = integers["loss_chunks"]
    integers["loss_chunks"] = np.where(chunks > 0, chunks, np.asarray(loss_chunks, np.int64))
    width = column(lambda case: 4 if case.dtype == "fp32" else 2)
    of_trainer = np.where((width == 4) | (np.asarray(gradient_bytes) == 0), width, gradient_bytes)
    gradients = column(attrgetter("gradient_bytes"), float)
    return Columns(
        **integers,
        **{name: column(attrgetter(name), bool) for name in flags},
        schedule=column(lambda case: SCHEDULES.index(schedule_by_name(case.schedule) or Schedule.ONE_F_ONE_B)),
        recompute=column(lambda case: RECOMPUTES.index(case.recompute)),
        recompute_modules=column(lambda case: code_of_modules(case.recompute_modules)),
        width=width,
        offload=column(lambda case: case.offload is Offload.OPTIMIZER, bool),
        gradient_bytes=np.where(gradients > 0, gradients, of_trainer),
        optimizer_bytes=column(attrgetter("optimizer_bytes"), float),
    )
