"""What may be made to go wrong on purpose, so that a finding can be held against the truth?

``--fault kind:key=value,key=value``, several times. Most take ``steps=first-last`` and ``probability=p`` (drawn anew
for each step, from the seed). What was injected stands in the manifest, and where it acts the trace is marked.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer.errors import OptionError
from trainer.parallel.mesh import Layout
from usp_prof import record

SO_MAX_PACING_RATE = 47
"""Linux: the most bytes per second that a socket sends."""
ALWAYS: dict[str, Any] = {"steps": "", "probability": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "slow-rank": {"rank": 0, "factor": 2.0, **ALWAYS},
    "slow-stage": {"stage": 0, "factor": 2.0, **ALWAYS},
    "slow-host": {"host": 0, "hosts": 2, "factor": 2.0, **ALWAYS},
    "late-input": {"rank": 0, "ms": 100.0, **ALWAYS},
    "pause": {"rank": 0, "ms": 200.0, "every": 2, **ALWAYS},
    "slow-link": {"axis": "dp", "mbps": 0.0, "delay_ms": 0.0, "rank": -1},
    "unbucketed": {},
    "unoverlapped": {},
    "blocking-sync": {},
    "expert-imbalance": {"expert": 0, "bias": 0.2},
    "unequal-lengths": {"dp": 0, "documents": 4},
}
"""Every fault with its settings and their defaults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as it was asked for."""

    kind: str
    settings: dict[str, Any]

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - a setting's own type
        return self.settings[key]

    def acts(self, step: int, seed: int) -> bool:
        """Say whether it acts in a step; all ranks agree."""
        if self.settings.get("steps"):
            first, _, last = self["steps"].partition("-")
            if not int(first) <= step <= int(last or first):
                return False
        chance = self.settings.get("probability", 1.0)
        return chance >= 1 or random.Random(f"{seed} {step} {self.kind}").random() < chance  # noqa: S311 - no secret

    def ranks(self, layout: Layout, stage_ranks: Callable[[int], int]) -> list[int]:
        """Give the ranks that it strikes; all of them where it names none."""
        places = {rank: layout.coordinates(rank) for rank in range(layout.world)}
        if self.settings.get("rank", -1) >= 0:
            return [self["rank"]]
        if self.kind == "slow-host":
            return [rank for rank in places if rank * self["hosts"] // layout.world == self["host"]]
        if self.kind == "slow-stage":
            return [rank for rank, place in places.items() if place["pp"] == stage_ranks(self["stage"])]
        if self.kind == "unequal-lengths":
            shards = layout.dp_shard
            return [rank for rank, at in places.items() if at["dp_replicate"] * shards + at["dp_shard"] == self["dp"]]
        return list(places)


def parse_faults(texts: list[str]) -> list[Fault]:
    """Read ``kind:key=value,...``; an unknown word is refused with the known ones."""
    return [_parse(text) for text in texts]


def _parse(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise OptionError(f"--fault {text}: no fault {kind!r}", hint=f"one of {', '.join(KINDS)}")
    settings = dict(KINDS[kind])
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in settings:
            known = ", ".join(KINDS[kind]) or "nothing"
            raise OptionError(f"--fault {text}: {kind} has no setting {key!r}", hint=f"it takes {known}")
        try:
            settings[key] = type(settings[key])(value)
        except ValueError as error:
            raise OptionError(f"--fault {text}: {value!r} does not fit {key}", hint=f"{key}={settings[key]}") from error
    return Fault(kind, settings)


@dataclass(slots=True)
class Drag:
    """How much slower than it should a chunk computes now; 1 is healthy."""

    factor: float = 1.0


@dataclass(slots=True)
class Faults:
    """The faults of a run, as they strike this rank."""

    faults: list[Fault]
    rank: int
    seed: int
    struck: list[list[int]]
    """The ranks that each fault strikes."""
    drags: dict[int, Drag] = field(default_factory=dict)
    """By model chunk."""
    _sockets: set[str] = field(default_factory=set)

    def of_kind(self, kind: str) -> list[Fault]:
        """Give the faults of a kind that strike this rank."""
        return [
            fault
            for fault, ranks in zip(self.faults, self.struck, strict=True)
            if fault.kind == kind and self.rank in ranks
        ]

    def truth(self) -> list[dict[str, Any]]:
        """Say what was injected, for the manifest."""
        return [
            {"kind": fault.kind.replace("-", "_"), **fault.settings, "ranks": ranks}
            for fault, ranks in zip(self.faults, self.struck, strict=True)
        ]

    def drag(self, chunk: int) -> Drag | None:
        """Make the drag of a chunk; `None` when nothing can ever slow it."""
        stages = [fault for fault in self.of_kind("slow-stage") if fault["stage"] == chunk]
        if stages or self.of_kind("slow-rank") or self.of_kind("slow-host"):
            self.drags[chunk] = Drag()
        return self.drags.get(chunk)

    def begin(self, step: int) -> None:
        """Set what acts in this step, and stand still where a pause is due."""
        for chunk, drag in self.drags.items():
            drag.factor = 1.0
            for fault in self.faults:
                aimed = fault.kind in {"slow-rank", "slow-host"} or (
                    fault.kind == "slow-stage" and fault["stage"] == chunk
                )
                if aimed and fault in self.of_kind(fault.kind) and fault.acts(step, self.seed):
                    drag.factor *= fault["factor"]
        for fault in self.of_kind("pause"):
            if step % fault["every"] == 0 and fault.acts(step, self.seed):
                with record.mark("fault", "pause"):
                    time.sleep(fault["ms"] / 1e3)

    def input(self, step: int) -> None:
        """Be late with the input."""
        for fault in self.of_kind("late-input"):
            if fault.acts(step, self.seed):
                with record.mark("fault", "late_input"):
                    time.sleep(fault["ms"] / 1e3)

    def crowd(self, experts: int, device: torch.device) -> torch.Tensor | float:
        """Give what the router adds to its preferences."""
        crowd = torch.zeros(experts, device=device)
        for fault in self.of_kind("expert-imbalance"):
            crowd[fault["expert"] % experts] += fault["bias"]
        return crowd if crowd.any() else 0.0

    def documents(self) -> int:
        """Say into how many documents this rank's sequences are cut."""
        return max([fault["documents"] for fault in self.of_kind("unequal-lengths")], default=1)

    def before_groups(self) -> None:
        """Note which sockets there are, so that the next group's can be told apart."""
        self._sockets = _sockets()

    def opened(self, axes: tuple[str, ...]) -> float:
        """Slow the links of the group just opened, if it serves a slow axis; gives the delay of its messages.

        Bandwidth is limited by the kernel, which paces the group's sockets; on NCCL only the delay acts.
        """
        fresh, self._sockets = _sockets() - self._sockets, _sockets()
        for fault in self.of_kind("slow-link"):
            if fault["mbps"] and fault["axis"] in axes:
                for name in fresh:
                    with socket.socket(fileno=os.dup(int(name.split()[0]))) as link:
                        link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(fault["mbps"] * 1e6 / 8))
        return sum(fault["delay_ms"] / 1e3 for fault in self.of_kind("slow-link") if fault["axis"] in axes)


def _sockets() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the listing's own descriptor is gone again
            continue
        if target.startswith("socket:"):
            found.add(f"{entry.name} {target}")
    return found
