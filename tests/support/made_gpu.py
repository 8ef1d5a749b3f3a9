"""Synthetic GPU runs over NCCL with one fault each, and the true gain of its repair: the same seed without the fault.

The runs come from `usp_prof.extras.synth`, a separate simulation: each host launches, each stream runs its queue, and a
collective starts to transfer when its last member has arrived. The replay is not used for the ground truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tiers import thinned

from usp_prof.extras.synth.declaration import Declaration, Fault, FaultKind
from usp_prof.extras.synth.simulation import Simulation, ground_truth, settled_step_ns
from usp_prof.extras.synth.write import write
from usp_prof.run import open_run

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

BUSY_HOST = {
    "op_gap_ns": 16_000,
    "forward_ns": 150_000,
    "input_gradient_ns": 150_000,
    "weight_gradient_ns": 150_000,
    "input_ns": 60_000,
}
"""A host that is just fast enough: what holds it up is soon seen on the device."""
SMALL_ACTIONS = {
    "op_gap_ns": 5_000,
    "forward_ns": 60_000,
    "input_gradient_ns": 60_000,
    "weight_gradient_ns": 60_000,
    "optimizer_ns": 100_000,
    "input_ns": 20_000,
}
"""Actions so short that the time from a launch to its kernel counts where the host cannot launch ahead."""

RUNS: dict[str, dict[str, Any]] = {
    "replicas": {"mesh": {"dp": 4}, "speed": BUSY_HOST},
    "tensor-parallel": {"mesh": {"dp": 2, "tp": 2}, "speed": BUSY_HOST},
    "pipeline": {"mesh": {"dp": 2, "pp": 2}, "work": {"micro_batches": 4}},
    "experts": {
        "mesh": {"dp": 4, "ep": 4},
        "speed": BUSY_HOST | {"watchdog_ns": 400_000},
        "work": {"host_waits": True},
        "network": {"axis_bytes_per_second": {"ep": 4e11}},
    },
    "sharded": {"mesh": {"dp": 4}, "work": {"zero_stage": 3}, "speed": {"watchdog_ns": 700_000}},
    "two-hosts": {
        "mesh": {"dp": 4},
        "work": {"host_waits": True},
        "clocks": {"ranks_per_host": 2, "offset_bound_ns": 40_000_000},
        "speed": {"watchdog_ns": 400_000},
    },
    "eight-ranks": {"mesh": {"dp": 4, "tp": 2}, "clocks": {"ranks_per_host": 4, "offset_bound_ns": 3_000_000}},
    "small-actions": {
        "mesh": {"dp": 4},
        "shape": {"layers": 1},
        "work": {"micro_batches": 12},
        "speed": SMALL_ACTIONS,
    },
    "late-starts": {
        "mesh": {"dp": 2, "tp": 2},
        "shape": {"layers": 1},
        "work": {"micro_batches": 12},
        "speed": SMALL_ACTIONS | {"launch_latency_ns": 12_000},
    },
}
"""Runs that differ in what the ranks wait for and in how far the hosts are ahead; each has a seed of its own."""


def pause(rank: int, delay_ms: float, times: int = 1) -> Fault:
    """Make a host sleep in every step."""
    return Fault(FaultKind.HOST_PAUSE, rank, delay_ns=round(delay_ms * 1e6), times=times)


def late_input(rank: int, delay_ms: float) -> Fault:
    """Make the loader of one rank late in every step."""
    return Fault(FaultKind.LATE_INPUT, rank, delay_ns=round(delay_ms * 1e6))


BIG_RUNS = ("replicas", "tensor-parallel", "pipeline", "experts", "sharded", "two-hosts", "eight-ranks")
FAULTS: dict[str, dict[Fault, tuple[str, ...]]] = {
    "host_pause": {
        pause(2, 60): BIG_RUNS,
        pause(1, 4, times=3): BIG_RUNS,
        Fault(FaultKind.HOST_PAUSE, 3, step=12, delay_ns=20_000_000): ("replicas", "two-hosts"),
    },
    "late_launches": {
        Fault(FaultKind.SLOW_HOST, 2, factor=5.0): BIG_RUNS,
        Fault(FaultKind.SLOW_HOST, 1, factor=9.0): BIG_RUNS,
        Fault(FaultKind.SLOW_HOST, 3, factor=1.6): ("replicas", "tensor-parallel", "experts"),
    },
    "slow_rank": {
        Fault(FaultKind.SLOW_RANK, 2, factor=1.25): BIG_RUNS,
        Fault(FaultKind.SLOW_RANK, 1, factor=1.6): BIG_RUNS,
    },
    # A link is slow compared with other groups of its axis. A single group cannot be compared.
    "slow_link": {
        Fault(FaultKind.SLOW_LINK, 0, factor=12.0, axis="tp"): ("tensor-parallel", "eight-ranks", "late-starts"),
        Fault(FaultKind.SLOW_LINK, 3, factor=30.0, axis="dp"): ("tensor-parallel", "pipeline", "eight-ranks"),
        Fault(FaultKind.SLOW_LINK, 1, factor=5.0, axis="tp"): ("eight-ranks",),
    },
    "blocking_sync": {Fault(FaultKind.BLOCKING_SYNC, 0): ("small-actions", "late-starts")},
    "late_input": {late_input(2, 9): BIG_RUNS, late_input(1, 30): BIG_RUNS},
}
"""For each kind its faults, and the runs that have each of them."""

WORTH_NAMING = 0.05
"""A fault that truly costs this much is to be found; rules are silent below 2%."""

_FOLDER = TemporaryDirectory()


@dataclass(frozen=True, slots=True)
class MadeRun:
    """A synthetic run, its fault, and the true gain of its repair, as a share of the mean step."""

    name: str
    fault: Fault | None
    tables: TableSet = field(repr=False)
    gain: float


@cache
def made_run(name: str, fault: Fault | None = None) -> MadeRun:
    """Make a run with one fault, or without any."""
    declared = replace(_plain(name), faults=(fault,) if fault else ())
    folder = Path(_FOLDER.name) / str(len(list(Path(_FOLDER.name).iterdir())))
    write(declared, folder)
    gain = sum(culprit.gain_fraction for culprit in ground_truth(Simulation(declared)).culprits)
    place = f" rank {fault.rank} {fault.factor:g}x {fault.times}x{fault.delay_ns / 1e6:g}ms" if fault else ""
    return MadeRun(name + place, fault, open_run(folder, cache_dir=folder / "cache").tables, gain)


def write_plain(name: str, folder: Path) -> Path:
    """Write a run without faults."""
    write(_plain(name), folder)
    return folder


def faulty_runs(kind: str) -> list[tuple[str, Fault]]:
    """List the runs with a kind of fault; in the default suite one of three."""
    return thinned([(name, fault) for fault, names in FAULTS[kind].items() for name in names], 3)


def made_runs(kind: str) -> list[MadeRun]:
    """Make the runs with a kind of fault."""
    return [made_run(name, fault) for name, fault in faulty_runs(kind)]


def ideal_gain(name: str, fault: Fault) -> float:
    """Return the gain of a faulty run if its ranks were equal: compute at the mean of peers, without the fault."""
    plain = _plain(name)
    faulty = replace(plain, faults=(fault,))
    alike = plain
    if fault.kind is FaultKind.SLOW_RANK:
        # Peers are the ranks of one stage. Each gets the mean of their times, including the slow rank's.
        size = plain.mesh.world // plain.mesh.pp
        first = fault.rank // size * size
        mean = (size - 1 + fault.factor) / size
        alike = replace(plain, faults=tuple(replace(fault, rank=first + n, factor=mean) for n in range(size)))
    before, after = (settled_step_ns(Simulation(run)) for run in (faulty, alike))
    return 1 - after / before


def _plain(name: str) -> Declaration:
    described = {"shape": {"layers": 4}, **RUNS[name], "seed": 17 + list(RUNS).index(name)}
    return Declaration.from_dict({**described, "work": {"steps": 5, "micro_batches": 2, **described.get("work", {})}})
