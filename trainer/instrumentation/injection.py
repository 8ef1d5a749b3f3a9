"""Fault injection: the effects of a run's faults on this rank. Each fault writes a mark into the trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from trainer.configuration.config import Config
from trainer.configuration.faults import Fault
from trainer.instrumentation.slow_link import SlowLink, connections, open_sockets
from trainer.model.decoder import Lengths
from usp_prof import record


def affected_ranks(fault: Fault, config: Config) -> list[int]:
    """Return the ranks that a fault affects; all ranks if it names none."""
    world, named_rank = config.layout.world, fault.settings.get("rank", -1)
    affects: Callable[[int, dict[str, int]], bool] = {
        "slow-host": lambda rank, _: rank * fault["hosts"] // world == fault["host"],
        "slow-stage": lambda _, place: fault["stage"] in config.stages_of(place["pp"]),
        "unequal-lengths": lambda _, place: fault["dp"] in {place["dp"], -1},
    }.get(fault.kind, lambda rank, _: named_rank in {rank, -1})
    return [rank for rank in range(world) if affects(rank, config.layout.coordinates(rank))]


@dataclass(slots=True)
class Slowdown:
    """Factor by which a stage's compute currently takes longer."""

    factor: float = 1.0


class Faults:
    """The faults of a run that affect this rank."""

    def __init__(self, config: Config, rank: int) -> None:
        self.config, self.seed = config, config.options.seed
        self.replica = config.layout.coordinates(rank)["dp"]
        self.ranks_of_faults = [(fault, affected_ranks(fault, config)) for fault in config.faults]
        self.own_faults = [fault for fault, ranks in self.ranks_of_faults if rank in ranks]
        self.slowdowns: dict[int, Slowdown] = {}  # by stage
        self._sockets = open_sockets() if self.of_kind("slow-link") else set()

    def of_kind(self, kind: str, step: int | None = None) -> list[Fault]:
        """Return the faults of a kind that affect this rank, at any time or in a step."""
        faults = [fault for fault in self.own_faults if fault.kind == kind]
        return faults if step is None else [fault for fault in faults if fault.acts(step, self.seed)]

    def truth(self) -> list[dict[str, Any]]:
        """Return the injected faults, for the manifest."""
        return [
            {"kind": fault.kind.replace("-", "_"), **fault.settings, "ranks": ranks}
            for fault, ranks in self.ranks_of_faults
        ]

    def slowdown(self, stage: int) -> Slowdown | None:
        """Create the slowdown of a stage; `None` if no fault ever slows it."""
        here = [fault for fault in self.of_kind("slow-stage") if fault["stage"] == stage]
        if here or self.of_kind("slow-rank") or self.of_kind("slow-host"):
            self.slowdowns[stage] = Slowdown()
        return self.slowdowns.get(stage)

    def begin(self, step: int) -> None:
        """Set the slowdowns of this step, and pause if a pause is due."""
        everywhere = self.of_kind("slow-rank", step) + self.of_kind("slow-host", step)
        for stage, slowdown in self.slowdowns.items():
            here = [fault for fault in self.of_kind("slow-stage", step) if fault["stage"] == stage]
            slowdown.factor = prod(fault["factor"] for fault in everywhere + here)
        for fault in self.of_kind("pause", step):
            _sleep("pause", fault["ms"])

    def input(self, step: int) -> None:
        """Delay the input."""
        for fault in self.of_kind("late-input", step):
            _sleep("late_input", fault["ms"])

    def router_bias(self, experts: int, device: torch.device) -> torch.Tensor | None:
        """Return the bias that faults add to the router's preferences, if any."""
        router_bias = [0.0] * experts
        for fault in self.of_kind("expert-imbalance"):
            router_bias[fault["expert"]] += fault["bias"]
        return torch.tensor(router_bias, device=device) if any(router_bias) else None

    def packing(self, step: int) -> list[Lengths]:
        """Return the lengths of documents per sequence, for each micro-batch of an update; `()` is one document.

        Attention grows with the squares of the lengths. On affected ranks, cuts are drawn per micro-batch, so attention
        costs more in some than in others. On other ranks, all micro-batches have the same lengths, with the same mean
        cost.
        """
        options, sequence = self.config.options, self.config.shape.sequence
        passes = options.accumulate * options.micro_batches
        fault = next((fault for fault, _ in self.ranks_of_faults if fault.kind == "unequal-lengths"), None)
        if fault is None:
            return [()] * passes
        if fault not in self.own_faults:
            return [_usual_lengths(sequence, fault["documents"])] * passes
        return [
            _lengths([self.seed, step, self.replica, index], sequence, fault["documents"]) for index in range(passes)
        ]

    def opened(self, axes: tuple[str, ...]) -> Callable[[], None] | None:
        """Slow the links that were opened since the last call, if their group serves a slow axis.

        Return the function that delays the next message, or `None` if messages are not delayed.
        """
        slow = [fault for fault in self.of_kind("slow-link") if fault["axis"] in axes]
        if not self.of_kind("slow-link"):
            return None
        known_sockets, self._sockets = self._sockets, open_sockets()
        if not slow:
            return None
        slowest = min((fault["mbps"] for fault in slow if fault["mbps"]), default=0.0)
        delay = sum(fault["delay_ms"] for fault in slow) / 1e3
        link = SlowLink(
            connections(self._sockets - known_sockets), bytes_per_second=int(slowest * 1e6 / 8), delay_seconds=delay
        )

        def hold_back() -> None:
            with record.mark("fault", "slow_link"):
                link.hold()

        return hold_back if delay else None


def _lengths(seed: list[int], sequence: int, documents: int) -> Lengths:
    """Draw the cuts of a sequence into documents; all cuts are equally likely."""
    cuts = 1 + np.random.default_rng(seed).choice(sequence - 1, documents - 1, replace=False)
    return tuple(np.diff([0, *np.sort(cuts), sequence]).tolist())


def _usual_lengths(sequence: int, documents: int) -> Lengths:
    """Cut a sequence into one long and equal short documents, with the mean sum of squares of drawn cuts.

    For n documents with drawn cuts, the squares of their shares of the sequence add up to 2 / (n + 1) on average. One
    share x and n - 1 equal shares have x^2 + (1 - x)^2 / (n - 1). Both are equal for the x below: 0.59 for n = 4.
    """
    long = (1 + (documents - 1) / math.sqrt(documents + 1)) / documents
    cuts = np.rint(sequence * np.linspace(long, 1, documents)).astype(int)
    return tuple(np.diff([0, *cuts]).tolist())


def _sleep(mark_name: str, milliseconds: float) -> None:
    with record.mark("fault", mark_name):
        time.sleep(milliseconds / 1e3)
