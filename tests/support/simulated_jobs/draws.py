"""Draws of simulated jobs: one set of options per workload and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from simulated_jobs.options import Options

T = TypeVar("T")
WORKLOADS = (
    "ddp",
    "accumulation",
    "compile",
    "graph",
    "fsdp",
    "hsdp",
    "zero3",
    "moe",
    "tp",
    "pipeline",
    "unbatched",
    "interleaved",
)
"""Workloads with their layouts; the last three are pipelines."""


class Dice:
    """Random choices."""

    def __init__(self, *seeds: int) -> None:
        self._drawn = np.random.default_rng(seeds)

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices; a choice that appears twice is twice as likely."""
        return choices[int(self._drawn.integers(len(choices)))]

    def sample(self, count: int, limit: int) -> tuple[int, ...]:
        """Return sorted different numbers below a limit."""
        return tuple(sorted(int(x) for x in self._drawn.choice(limit, count, replace=False)))

    def between(self, low: float, high: float) -> float:
        """Return a number between two."""
        return float(self._drawn.uniform(low, high))

    def chance(self, probability: float) -> bool:
        """Return true with this probability."""
        return bool(self._drawn.random() < probability)


def draw_options(workload: str, dice: Dice) -> Options:
    """Draw a job of a workload."""
    options = Options(
        seed=dice.pick(range(10**6)),
        steps=dice.pick((1, 2, 3, 3, 6)),
        log_every=dice.pick((1, 1, 0, 2)),
        clip=dice.pick(("", "yes", "sync")),
        loader=dice.pick(("multi", "multi", "single")),
        host_to_device=dice.pick(("pinned", "pinned", "pageable", "sync")),
        scale=dice.pick((1.0, 1.0, 0.4, 0.15)),
        kernel_noise=dice.pick((0.005, 0.015, 0.03)),
        host_noise=dice.pick((0.1, 0.25)),
        message_noise=dice.pick((0.02, 0.06)),
        hiccup_probability=dice.pick((0.0, 0.0005, 0.002)),
        slowdown=dice.pick((1.0, 1.0, 1.1)),
        names=dice.pick(("full", "full", "full", "no_groups", "none")),
        has_sequence_numbers=dice.chance(0.3),
        is_rocm=dice.chance(0.12),
        message_us=dice.pick((200.0, 500.0)),
        layers=dice.pick((4, 6)),
    )
    if workload in ("hsdp", "moe", "tp", "pipeline", "unbatched", "interleaved"):
        # Several kinds of groups: without names, a trace does not say which call belongs to which group.
        options = replace(options, names="full", steps=min(options.steps, 3))
    options = replace(options, **_layout(workload, options, dice))
    return replace(options, ranks_per_node=dice.pick((options.ranks, max(2, options.ranks // 2))))


def _layout(workload: str, options: Options, dice: Dice) -> dict[str, Any]:
    match workload:
        case "accumulation":
            return {"workload": "ddp", "accumulation": dice.pick((2, 4)), "layers": 3, "ranks": dice.pick((2, 4))}
        case "hsdp":
            return {"workload": "fsdp", "ranks": 8, "shard": dice.pick((2, 4)), "layers": 4}
        case "moe":
            sizes = dice.pick(((8, 2), (8, 4), (4, 4)))
            us = dice.pick((60.0, 200.0))
            return {"workload": "moe", "ranks": sizes[0], "ep": sizes[1], "layers": 4, "message_us": us}
        case "tp":
            scale, us = dice.pick((0.4, 0.15, 0.05)), dice.pick((25.0, 60.0))
            shape = {"ranks": 8, "tp": dice.pick((2, 4)), "layers": 4}
            return {"workload": "tp", "scale": scale, "message_us": us, **shape}
        case "pipeline" | "unbatched" | "interleaved":
            return _pipeline(workload, options, dice)
        case _:
            return {"workload": workload, "ranks": dice.pick((2, 4, 4))}


def _pipeline(workload: str, options: Options, dice: Dice) -> dict[str, Any]:
    stages, replicas = dice.pick((2, 4)), dice.pick((1, 2))
    layout: dict[str, Any] = {
        "workload": "pipeline",
        "pp": stages,
        "ranks": stages * replicas,
        "micro_batches": dice.pick((4, 8)),
        "layers": 1 if workload == "interleaved" else 2,
        "chunks": 2 if workload == "interleaved" else 1,
        "is_batched": workload == "pipeline",
        "has_device_syncs": workload == "pipeline" and dice.chance(0.25),
        "message_us": dice.pick((40.0, 150.0)),
        "scale": dice.pick((1.0, 0.4)),
    }
    if stages * replicas == 8:
        layout["steps"] = min(options.steps, 2)
    return layout
