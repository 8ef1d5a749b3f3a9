"""Synthetic pairs of runs with and without a fault: kinds of fault, and how meshes, places and sizes are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Declared = dict[str, Any]
MESHES: tuple[dict[str, int], ...] = (
    {"dp": 4}, {"dp": 2, "pp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 2}, {"dp": 8}, {"dp": 2, "pp": 4},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A declared faulty run and its repair; `edit` if the repair differs from the one that the finding names."""

    faulty: Declared
    repaired: Declared
    edit: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pair: the expected finding, and how to draw one."""

    code: str
    draw: Callable[[np.random.Generator], Pair]
    in_both: str = ""
    """Code of a fault in both runs, without which the pair's own fault would cost nothing."""


def base(rng: np.random.Generator, mesh: dict[str, int]) -> Declared:
    """Draw the settings common to all runs."""
    pipelined = mesh.get("pp", 1) > 1
    work = {"steps": 5, "micro_batches": mesh["pp"] * int(rng.choice([2, 3])) if pipelined else 2}
    return {"mesh": mesh, "seed": int(rng.integers(1 << 20)), "work": work}


def faulted(
    kind: str, *, meshes: tuple[dict[str, int], ...] = MESHES, **limits: tuple[float, float]
) -> Callable[..., Pair]:
    """Draw a mesh, a place and a size for a fault that is repaired by removing it."""

    def draw(rng: np.random.Generator) -> Pair:
        mesh = meshes[int(rng.integers(len(meshes)))]
        clean = base(rng, mesh)
        how: Declared = {"kind": kind, "rank": int(rng.integers(int(np.prod([*mesh.values()]) // mesh.get("ep", 1))))}
        for key, (low, high) in limits.items():
            size = float(rng.uniform(low, high))
            how[key] = round(size) if key == "delay_ns" else size
        return Pair(clean | {"faults": [how]}, clean)

    return draw


def slow_link(rng: np.random.Generator) -> Pair:
    """Draw a slow link of one group, which has peers because another axis splits the ranks."""
    mesh = [sizes for sizes in MESHES if len(sizes) > 1][int(rng.integers(4))]
    clean = base(rng, mesh)
    how = {"kind": "slow_link", "rank": 0, "axis": "dp", "factor": float(rng.uniform(6, 20))}
    return Pair(clean | {"faults": [how]}, clean)


def launch_bound(kind: str, **limits: tuple[float, float]) -> Callable[..., Pair]:
    """Return a function that draws a host fault on a run with short kernels, in which it is visible."""

    def draw(rng: np.random.Generator) -> Pair:
        pair = faulted(kind, meshes=({"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 8}), **limits)(rng)
        time = int(rng.uniform(80_000, 120_000))
        changes = {"speed": speed(time) | {"input_ns": 100_000}, "shape": {"layers": 2}}
        changes["work"] = pair.faulty["work"] | {"micro_batches": 8}
        return Pair(pair.faulty | changes, pair.repaired | changes)

    return draw


def unbalanced(rng: np.random.Generator) -> Pair:
    """Draw a slower last stage; in the repaired run all stages take the mean."""
    ranks, factor = int(rng.choice([2, 4])), float(rng.uniform(1.3, 1.8))
    clean = base(rng, {"pp": ranks, "dp": int(rng.choice([1, 2]))})
    mean = round(400_000 * (ranks - 1 + factor) / ranks)
    return Pair(clean | {"speed": {"last_stage_factor": factor}}, clean | {"speed": speed(mean)})


def other_schedule(rng: np.random.Generator) -> Pair:
    """Draw a GPipe run for which two stages per rank would fit."""
    ranks = int(rng.choice([2, 4]))
    clean = base(rng, {"pp": ranks, "dp": int(rng.choice([1, 2]))}) | {"shape": {"layers": 2 * ranks}}
    work = clean["work"]
    return Pair(
        clean | {"work": work | {"schedule": "GPipe"}},
        clean | {"work": work | {"schedule": "Interleaved1F1B", "virtual_stages": 2}},
        "schedule=interleaved,v=2",
    )


def few_micro_batches(rng: np.random.Generator) -> Pair:
    """Draw a run with one micro-batch per rank; the repaired run has twice as many of half the length."""
    ranks, time = int(rng.choice([2, 4])), int(rng.uniform(600_000, 1_000_000))
    clean = base(rng, {"pp": ranks, "dp": int(rng.choice([1, 2]))})
    return Pair(
        clean | {"speed": speed(time), "work": clean["work"] | {"micro_batches": ranks}},
        clean | {"speed": speed(time // 2), "work": clean["work"] | {"micro_batches": 2 * ranks}},
    )


def settings(section: str, faulty: Declared, repaired: Declared, **more: Any) -> Callable[..., Pair]:  # noqa: ANN401
    """Return a function that draws a run with different settings."""

    def draw(rng: np.random.Generator) -> Pair:
        clean = base(rng, {"dp": int(rng.choice([4, 8]))}) | more
        own = clean.get(section, {})
        return Pair(clean | {section: own | faulty}, clean | {section: own | repaired})

    return draw


def contiguous(rng: np.random.Generator) -> Pair:
    """Draw a run whose sequence is split into contiguous parts."""
    clean = base(rng, {"cp": int(rng.choice([2, 4]))}) | {"network": {"axis_bytes_per_second": {"cp": 3e11}}}
    return Pair(clean | {"faults": [{"kind": "contiguous_cp", "rank": 0}]}, clean)


def slow_bandwidth(rng: np.random.Generator) -> Pair:
    """Draw data-parallel collectives at a tenth of the link's 450 GB/s; repaired, they reach three quarters."""
    clean = base(rng, {"dp": int(rng.choice([4, 8]))})
    low = float(rng.uniform(6e9, 3e10))
    both = ({"network": {"axis_bytes_per_second": {"dp": rate}}} for rate in (low, 0.75 * 450e9))
    return Pair(*(clean | network for network in both))


def odd_vocabulary(rng: np.random.Generator) -> Pair:
    """Draw a run with a vocabulary that is not a multiple of a tile."""
    clean = base(rng, {"dp": 4})
    time, slower = 1_000_000, float(rng.uniform(1.5, 4))
    return Pair(
        clean | {"shape": {"vocab": 50257}, "speed": {"head_ns": round(time * slower)}},
        clean | {"shape": {"vocab": 50304}, "speed": {"head_ns": time}},
    )


def speed(time: int) -> Declared:
    """Return settings with the same time in ns for all parts of a layer."""
    return dict.fromkeys(("forward_ns", "input_gradient_ns", "weight_gradient_ns"), time)


_LINK = {"network": {"axis_bytes_per_second": {"dp": 1.6e11}}}
KINDS: dict[str, Kind] = {
    "slow_rank": Kind("slow-rank", faulted("slow_rank", factor=(1.15, 2.0))),
    "slow_link": Kind("slow-link", slow_link),
    "late_input": Kind("late-input", faulted("late_input", delay_ns=(3e6, 1.2e7))),
    "gc_pause": Kind("host-pause", faulted("gc_pause", delay_ns=(5e6, 1.5e7))),
    "slow_host": Kind("slow-host", launch_bound("slow_host", factor=(2.5, 5.0))),
    "blocking_sync": Kind("blocking-sync", launch_bound("blocking_sync")),
    "pageable_copy": Kind(
        "blocking-copies", faulted("pageable_copy", meshes=({"dp": 4}, {"dp": 8}), delay_ns=(1e6, 3e6))
    ),
    "allocator": Kind(
        "memory-pressure", faulted("device_allocation", meshes=({"dp": 4}, {"dp": 8}), delay_ns=(3e6, 8e6))
    ),
    "unfused_optimizer": Kind(
        "unfused-optimizer", faulted("unfused_optimizer", meshes=({"dp": 4},), factor=(1000, 3000))
    ),
    "expert_imbalance": Kind(
        "uneven-experts",
        faulted("expert_imbalance", meshes=({"dp": 4, "ep": 4}, {"dp": 4, "ep": 2}), factor=(1.3, 1.9)),
    ),
    "contiguous_cp": Kind("uneven-sequence", contiguous),
    "unequal_lengths": Kind(
        "unequal-lengths", faulted("unequal_lengths", meshes=({"dp": 4}, {"dp": 8}), factor=(0.2, 0.4))
    ),
    "unbalanced_stage": Kind("stage-imbalance", unbalanced),
    "other_schedule": Kind("pipeline-schedule", other_schedule),
    "few_micro_batches": Kind("few-micro-batches", few_micro_batches),
    "unoverlapped_sync": Kind(
        "exposed-gradient-sync",
        settings("work", {"overlap_dp": False}, {"overlap_dp": True}, **_LINK, speed=speed(200_000)),
        in_both="low-bandwidth",
    ),
    "no_prefetch": Kind(
        "exposed-gathers",
        settings("work", {"zero_stage": 3, "overlap_dp": False}, {"zero_stage": 3, "overlap_dp": True}, **_LINK),
        in_both="low-bandwidth",
    ),
    "recompute": Kind("needless-recompute", settings("work", {"recompute": 1}, {})),
    "low_bandwidth": Kind("low-bandwidth", slow_bandwidth),
    "odd_vocabulary": Kind("wasted-tiles", odd_vocabulary),
}
