"""What did one rank do in the made-up run? Everything in true time, before any clock or file format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from usp_prof.synth.calls import Call
    from usp_prof.synth.ops import Op

MAIN, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class KernelBlock:
    """Ops that ran one after another: their host starts and the starts and lengths of their kernels."""

    ops: tuple[Op, ...]
    thread: int
    host_ns: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part of a call, and when the host issued it."""

    call: Call
    thread: int
    host_ns: int
    sequence: int
    peer: int = -1
    direction: str = ""
    blocking: bool = True


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between host and device."""

    direction: str
    bytes: int
    host_ns: int
    start_ns: int
    dur_ns: int


@dataclass(frozen=True, slots=True)
class Span:
    """A range on a host thread: an annotation, a call, a node of autograd or a pause."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    thread: int = MAIN


@dataclass(slots=True)
class ActionTime:
    """When a pipeline action's own work ran on the device."""

    step: int
    kind: str
    stage: int
    micro_batch: int
    start_ns: int = -1
    end_ns: int = -1


@dataclass(slots=True)
class RankLog:
    """One rank's history. `steps` are host marks; `inputs`, `syncs` and `pauses` say why a device may idle."""

    rank: int
    blocks: list[KernelBlock] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    actions: list[ActionTime] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    inputs: list[tuple[int, int]] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[tuple[int, int]] = field(default_factory=list)
