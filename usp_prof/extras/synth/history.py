"""History: the calls of all ranks and each rank's log, in true time."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.mesh import Group
from usp_prof.extras.synth.ops import Op

_VOLUME = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Transferred bytes of a call, in units of (n - 1) / n of its size; sends transfer their size once."""


@dataclass(slots=True)
class Call:
    """One communication of all members. Times are true time."""

    op: str
    group: Group
    sequence: int
    members: tuple[int, ...]
    bytes: int
    ready: dict[int, int] = field(default_factory=dict)
    after: dict[int, Call] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    waiters: list[Call] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the ends are known."""
        return bool(self.end)

    @property
    def last_ns(self) -> int:
        """Arrival of the last participant."""
        return max(self.start.values())


class Exchange:
    """All calls of the run: participants meet here, and transfer times are drawn."""

    def __init__(self, run: Declaration) -> None:
        self._run = run
        self._open: dict[tuple[object, ...], Call] = {}
        self._draws: dict[str, np.random.Generator] = {}
        self.calls: list[Call] = []

    def join(self, op: str, group: Group, key: Sequence[int], members: tuple[int, ...], size: int) -> Call:
        """Return the call with this key; the first participant creates it."""
        name = (op, group.name, *key)
        if name not in self._open:
            self._open[name] = Call(op, group, key[-1], members, size)
            self.calls.append(self._open[name])
        return self._open[name]

    def arrive(self, call: Call, rank: int, ready_ns: int, after: Call | None) -> None:
        """Record that a participant is ready, after the previous call on its stream; complete what is possible."""
        call.ready[rank] = ready_ns
        if after is not None:
            call.after[rank] = after
            if not after.done:
                after.waiters.append(call)
        pending = [call]
        while pending:
            current = pending.pop()
            if self._resolve(current):
                pending += current.waiters

    def _resolve(self, call: Call) -> bool:
        if call.done or len(call.ready) < len(call.members) or any(not before.done for before in call.after.values()):
            return False
        for rank in call.members:
            before = call.after.get(rank)
            call.start[rank] = max(call.ready[rank], before.end[rank] if before else 0)
        finish = call.last_ns + self._transfer(call)
        jitter = self._draw(call).integers(0, self._run.network.end_jitter_ns + 1, len(call.members))
        for rank, late in zip(call.members, jitter, strict=True):
            call.end[rank] = finish + int(late)
        return True

    def _transfer(self, call: Call) -> int:
        network, size = self._run.network, len(call.members)
        speed = network.axis_bytes_per_second.get(call.group.axis, network.bytes_per_second)
        crossings = _VOLUME.get(call.op, 1.0) * ((size - 1) / size if call.op in _VOLUME else 1.0)
        noise = float(np.exp(network.noise * self._draw(call).standard_normal()))
        slow = max(
            [1.0, *(f.factor for f in self._run.faults if f.kind == "slow_link" and _hits(f.axis, f.rank, call))]
        )
        return round((network.latency_ns + crossings * call.bytes / speed * 1e9) * noise * slow)

    def _draw(self, call: Call) -> np.random.Generator:
        """Draw separately for each stream of calls, so that a fault elsewhere does not change the values here."""
        stream = f"{call.group.name} {call.op} {call.members}"
        if stream not in self._draws:
            self._draws[stream] = np.random.default_rng([self._run.seed, 7, zlib.crc32(stream.encode())])
        return self._draws[stream]


def _hits(axis: str, rank: int, call: Call) -> bool:
    return rank in call.members and axis in ("", call.group.axis)


# Log of one rank: in true time, independent of clocks and file format.


MAIN, BACKWARD, WATCHDOG = 0, 1, 2


@dataclass(frozen=True, slots=True)
class KernelBlock:
    """Consecutive ops: their host starts, and the starts and durations of their kernels."""

    ops: tuple[Op, ...]
    thread: int
    host_ns: Ints
    start_ns: Ints
    dur_ns: Ints


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
    """Device time of a pipeline action's own work."""

    step: int
    kind: str
    stage: int
    micro_batch: int
    start_ns: int = -1
    end_ns: int = -1


@dataclass(slots=True)
class RankLog:
    """One rank's history. `steps` are host marks; `inputs`, `syncs` and `pauses` explain idle time of the device."""

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
