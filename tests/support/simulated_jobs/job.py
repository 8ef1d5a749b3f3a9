"""Job: the hosts and devices of a simulated training run, and how long its steps take."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np

from simulated_jobs.devices import Devices, Program, Work
from simulated_jobs.hosts import Host
from simulated_jobs.options import Options, groups_by_rank
from simulated_jobs.pipelines import pipeline_step
from simulated_jobs.replicas import compiled_step, ddp_step, graph_step
from simulated_jobs.sharding import fsdp_step, zero3_step
from simulated_jobs.splits import expert_step, tensor_step

STEPS: dict[str, Callable[[Host], Program[None]]] = {
    "ddp": ddp_step,
    "compile": compiled_step,
    "graph": graph_step,
    "fsdp": fsdp_step,
    "zero3": zero3_step,
    "moe": expert_step,
    "tp": tensor_step,
    "pipeline": pipeline_step,
}
"""Program of one step per workload."""


class Job:
    """A simulated job; all times are microseconds."""

    def __init__(self, options: Options) -> None:
        self.options = options
        drawn = np.random.default_rng([options.seed, 4])
        nodes = -(-options.ranks // options.ranks_per_node)
        self.node_offset = [float(x) for x in drawn.uniform(-1, 1, nodes) * options.node_clock_us]
        self.node_drift = [float(x) for x in drawn.uniform(-2e-6, 2e-6, nodes) * bool(options.node_clock_us)]
        self.device_offset = [float(x) for x in drawn.uniform(-1, 1, options.ranks) * options.device_clock_us]
        factors = np.exp(drawn.normal(0, options.device_spread, options.ranks))
        common = drawn.uniform(500, 2000)
        self._start_cost = [float(x) for x in common + drawn.uniform(0, 100, options.ranks)]
        """Time that starting the profiler takes."""
        self.groups = groups_by_rank(options)
        self.devices = Devices(options.slowdown)
        self.hosts = [Host(options, rank, self.groups[rank], self.devices) for rank in range(options.ranks)]
        for host, factor in zip(self.hosts, factors, strict=True):
            host.device_factor = float(factor)

    def simulate(self) -> Job:
        """Run the job to its end."""
        for host in self.hosts:
            self.devices.start(host, self._program(host))
        self.devices.run()
        stuck = [host.rank for host in self.hosts if any(work.end is None for work in host.launched)]
        assert not stuck, f"ranks {stuck} wait for messages that do not come"
        return self

    def _program(self, host: Host) -> Program[None]:
        options, step_program = self.options, STEPS[self.options.workload]
        host.now = host.usual.uniform(0, 300)
        for step in range(options.warmup + options.steps + options.unrecorded_steps):
            host.begin_step(step)
            if step == options.warmup and not options.unrecorded_steps:
                host.now += self._start_cost[host.rank]
                host.is_recording = True
            start = host.now
            yield from step_program(host)
            host.spend(10)
            host.mark_step(start)
            host.spend(15)
        yield from host.synchronize(host.all_last_work(), "cudaDeviceSynchronize")

    def rank_step_us(self) -> float:
        """Return the recorded step of the mean rank, from the start of its first work to the end of its last."""
        spans = [_span(recorded(host)) for host in self.hosts]
        return fmean(end - start for start, end in spans) / self.options.steps

    def job_step_us(self) -> float:
        """Return the recorded step of all ranks together."""
        start, end = _span([work for host in self.hosts for work in recorded(host)])
        return (end - start) / self.options.steps

    def steady_step_us(self) -> float:
        """Return the mean step of a job with `unrecorded_steps`, from first work to first work."""
        first, after = self.options.warmup, self.options.warmup + self.options.steps
        starts = [
            [min(work.start or 0.0 for work in host.launched if work.step == step) for step in (first, after)]
            for host in self.hosts
        ]
        return fmean(end - start for start, end in starts) / self.options.steps


def recorded(host: Host) -> list[Work]:
    """Return the work that a rank launched in the window."""
    return [work for work in host.launched if work.is_recorded]


def _span(works: list[Work]) -> tuple[float, float]:
    return min(work.start or 0.0 for work in works), max(work.end or 0.0 for work in works)
