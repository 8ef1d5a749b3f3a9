"""Declaration: mesh, model, schedule, speeds, network, clocks and faults of a synthetic run, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from usp_prof import limits
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import ERRORS, checked


class Style(StrEnum):
    """Kind of trace: a GPU run with NCCL, or a CPU run with gloo."""

    NCCL = "nccl"
    GLOO = "gloo"


class FaultKind(StrEnum):
    """An injected fault."""

    SLOW_RANK = "slow_rank"
    LATE_INPUT = "late_input"
    SLOW_LINK = "slow_link"
    GC_PAUSE = "gc_pause"
    HOST_PAUSE = "host_pause"
    SLOW_HOST = "slow_host"
    BLOCKING_SYNC = "blocking_sync"
    PAGEABLE_COPY = "pageable_copy"
    DEVICE_ALLOCATION = "device_allocation"
    UNFUSED_OPTIMIZER = "unfused_optimizer"
    EXPERT_IMBALANCE = "expert_imbalance"
    CONTIGUOUS_CP = "contiguous_cp"
    UNEQUAL_LENGTHS = "unequal_lengths"


_LARGEST_FACTOR = 1_000_000
_LONGEST_DELAY_NS = 3_600_000_000_000
"""An hour; longer faults leave the range of a trace's times."""
EVERYWHERE = (
    FaultKind.BLOCKING_SYNC,
    FaultKind.PAGEABLE_COPY,
    FaultKind.DEVICE_ALLOCATION,
    FaultKind.UNFUSED_OPTIMIZER,
)
"""Faults of a program, which affect all ranks."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the axes. Rank numbers vary fastest along tp, then cp, dp, pp; ep uses ranks of dp and cp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True)
class Shape:
    """The model, which determines shapes and bytes in the traces."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    ffn_hidden: int = 4096
    vocab: int = 32000
    sequence: int = 2048
    experts: int = 0
    experts_per_token: int = 2


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a step. `order` overrides the schedule's order of actions: one text such as "F0 F1 B0 B1" per rank."""

    schedule: str = "1F1B"
    virtual_stages: int = 1
    micro_batches: int = 4
    steps: int = 3
    first_step: int = 10
    order: tuple[str, ...] = ()
    overlap_dp: bool = True
    zero_stage: int = 0
    recompute: int = 0
    """How often each layer's forward is repeated before its backward."""
    host_waits: bool = False
    """Whether the host waits for the device after each action on all ranks, like a program that reads sizes back."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Compute times: one layer and micro-batch, in whole nanoseconds, before noise and faults.

    `head_ns` is the forward time of the output layer on the last stage; its backward takes twice that. 0: no output
    layer.
    """

    forward_ns: int = 400_000
    input_gradient_ns: int = 400_000
    weight_gradient_ns: int = 400_000
    head_ns: int = 0
    optimizer_ns: int = 600_000
    input_ns: int = 300_000
    op_gap_ns: int = 9_000
    launch_latency_ns: int = 4_000
    last_stage_factor: float = 1.0
    noise: float = 0.02
    extra_kernels: int = 0
    device: str = "NVIDIA H100 80GB HBM3"
    watchdog_ns: int = 0
    """Interval at which a separate thread queries the state of a call, like NCCL's watchdog; 0: no such thread."""


@dataclass(frozen=True, slots=True)
class Network:
    """Communication times: latency, plus bytes over the bandwidth of the axis; ends agree within jitter."""

    latency_ns: int = 12_000
    bytes_per_second: float = 200e9
    axis_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.05
    end_jitter_ns: int = 2_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """Differences of host clocks from true time. Host 0 has true time; missing hosts are drawn within the bounds."""

    ranks_per_host: int = 8
    offset_ns: tuple[int, ...] = ()
    drift_ppm: tuple[float, ...] = ()
    offset_bound_ns: int = 0
    drift_bound_ppm: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: on one rank, in one step (-1: in all), with a factor or a delay.

    A host pauses `times` times per step, each time for the delay, between launches spread evenly over the step.
    """

    kind: FaultKind
    rank: int
    step: int = -1
    factor: float = 1.0
    delay_ns: int = 0
    axis: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Declaration:
    """The whole run."""

    name: str = "synthetic"
    style: Style = Style.NCCL
    seed: int = 0
    mesh: Mesh = field(default_factory=Mesh)
    shape: Shape = field(default_factory=Shape)
    work: Work = field(default_factory=Work)
    speed: Speed = field(default_factory=Speed)
    network: Network = field(default_factory=Network)
    clocks: Clocks = field(default_factory=Clocks)
    faults: tuple[Fault, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Declaration:
        """Read a declaration; an unknown name raises an error with the nearest known one."""
        try:
            _check_names(cls, data)
            for name, part in _PARTS.items():
                _check_names(part, data.get(name, {}))
            for fault in data.get("faults", ()):
                _check_names(Fault, fault)
            return checked(cls, dict(data))
        except ERRORS as error:
            raise UsageError(
                f"the declaration of the run is invalid: {error}", hint="usp-prof synth --help shows examples"
            ) from error


_PARTS: dict[str, type] = {
    "mesh": Mesh, "shape": Shape, "work": Work, "speed": Speed, "network": Network, "clocks": Clocks,
}  # fmt: skip
_BLOCKS, _OPS, _EVENTS_PER_OP = 6, 20, 5
"""Of one layer and micro-batch, forward and backward: blocks and ops; an op with its kernel is five events."""


def _check_names(kind: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401 - any of the dataclasses above
    field_names = kind.__dataclass_fields__
    for name in values:
        if name not in field_names:
            raise unknown_name(f"field of {kind.__name__.lower()}", name, field_names)


def with_events(run: Declaration, events: int) -> Declaration:
    """Return the run with about this number of events per rank: more small ops per block, and time to launch them."""
    if not 1 <= events <= limits.MAX_SYNTHETIC_EVENTS:
        raise UsageError(
            f"--events is 1 to at most {limits.MAX_SYNTHETIC_EVENTS}, not {events}", hint="--events 100000"
        )
    actions = run.shape.layers // run.mesh.pp * run.work.micro_batches * run.work.steps
    blocks, ops = _BLOCKS * actions, _OPS * actions
    extra = max(0, round((events / _EVENTS_PER_OP - ops) / max(1, blocks)))
    longest = round((_OPS + _BLOCKS * extra) / 3 * run.speed.op_gap_ns * 1.5)
    speed = replace(
        run.speed,
        extra_kernels=extra,
        forward_ns=max(run.speed.forward_ns, longest),
        input_gradient_ns=max(run.speed.input_gradient_ns, longest),
        weight_gradient_ns=max(run.speed.weight_gradient_ns, longest),
    )
    return replace(run, speed=speed)


def check(run: Declaration) -> None:
    """Refuse an inconsistent declaration."""
    mesh, stages = run.mesh, run.mesh.pp * run.work.virtual_stages
    rules = (
        (min(mesh.dp, mesh.tp, mesh.pp, mesh.cp, mesh.ep) >= 1, "every axis has at least one rank"),
        (mesh.world <= limits.MAX_SYNTHETIC_RANKS, f"the mesh has at most {limits.MAX_SYNTHETIC_RANKS} ranks"),
        (run.work.micro_batches <= limits.PASSES.high, f"micro_batches is at most {limits.PASSES.high}"),
        (run.work.steps <= limits.PASSES.high, f"steps is at most {limits.PASSES.high}"),
        (run.work.virtual_stages in range(1, limits.CHUNKS.high + 1), f"virtual_stages is {limits.CHUNKS}"),
        (run.shape.layers in range(1, limits.STAGE.high + 1), f"layers is 1 to {limits.STAGE.high}"),
        ((mesh.dp * mesh.cp) % mesh.ep == 0, "ep divides dp times cp"),
        (run.shape.layers % stages == 0, f"layers are a multiple of the {stages} stages"),
        (run.work.micro_batches >= 1, "micro_batches is at least 1"),
        (run.work.steps >= 1, "steps is at least 1"),
        (run.work.order == () or len(run.work.order) == mesh.pp, "order has one text for each pipeline rank"),
        (run.seed >= 0, "the seed is at least 0"),
        *(rule for fault in run.faults for rule in _rules_of(fault, run)),
    )
    for holds, rule in rules:
        if not holds:
            raise UsageError(f"this run cannot be simulated: {rule}", hint="usp-prof synth --help shows examples")


def _rules_of(fault: Fault, run: Declaration) -> Iterator[tuple[bool, str]]:
    """Yield whether a fault keeps each rule, and the rule."""
    first_step, last_step = run.work.first_step, run.work.first_step + run.work.steps - 1
    yield 0 <= fault.rank < run.mesh.world, "faults name ranks of the mesh"
    yield fault.step == -1 or first_step <= fault.step <= last_step, f"faults name steps {first_step} to {last_step}"
    yield fault.times in range(1, limits.PASSES.high + 1), f"the times of a fault are {limits.PASSES}"
    yield 0 < fault.factor <= _LARGEST_FACTOR, f"the factor of a fault is above 0, and at most {_LARGEST_FACTOR:,}"
    yield 0 <= fault.delay_ns <= _LONGEST_DELAY_NS, f"the delay of a fault is 0 to {_LONGEST_DELAY_NS:,} ns"
    is_shared = not fault.axis or getattr(run.mesh, fault.axis, 1) > 1
    yield is_shared, "faults name axes of the mesh that have several ranks"
