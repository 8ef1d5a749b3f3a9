"""Options: the description of a simulated job, its fault, and its process groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of some ranks. `kind` is a key of `cases.FAULTS` without the number of ranks, as in `pause`.

    `size` is in microseconds, or a factor for slow hosts, devices, links, experts and stages and for long sequences.
    """

    kind: str
    ranks: tuple[int, ...]
    size: float = 1.0
    steps: tuple[int, ...] | None = None
    """Recorded steps with the fault; `None` for all steps."""
    place: str = "forward"
    """Where the fault happens once per step: in the middle of forward or backward, or before the optimizer."""
    is_in_each_layer: bool = False
    count: int = 1
    axis: str = ""
    probability: float = 0.0
    is_repaired: bool = False
    """Whether the calls remain but no longer block, which is the repair of a fault on all ranks."""

    def is_active(self, recorded_step: int) -> bool:
        """Return whether a step has the fault; the recorded steps count from 0."""
        return self.steps is None or recorded_step in self.steps


@dataclass(frozen=True, slots=True)
class Options:
    """A job: workload, layout, sizes, noise and what the trace contains. Times are microseconds."""

    workload: str = "ddp"
    """ddp, compile, graph, fsdp, zero3, moe, tp or pipeline."""
    ranks: int = 4
    ranks_per_node: int = 4
    tp: int = 1
    pp: int = 1
    ep: int = 1
    shard: int = 0
    """Ranks that share one copy of the weights; 0 for all ranks."""
    layers: int = 6
    micro_batches: int = 1
    chunks: int = 1
    """Stages per rank of an interleaved pipeline."""
    is_batched: bool = False
    """Whether a pipeline sends and receives in batches, whose kernels name neither group nor peer."""
    has_device_syncs: bool = False
    """Whether a batched pipeline synchronizes the device after its messages."""
    accumulation: int = 1
    bucket: int = 2
    """Layers per gradient all-reduce."""
    scale: float = 1.0
    """Factor of all compute."""
    message_us: float = 500.0
    log_every: int = 1
    """Steps between two reads of the loss; 0 for none."""
    clip: str = ""
    """Gradient clipping: empty, `yes`, or `sync` if the host reads the norm."""
    loader: str = "multi"
    host_to_device: str = "pinned"
    """How batches are copied: pinned, pageable or sync."""
    load_us: float = 400.0
    routing_spread: float = 0.1
    steps: int = 3
    warmup: int = 2
    unrecorded_steps: int = 0
    """Steps after the window. With some, nothing is recorded, and `Job.steady_step_us` is known."""
    seed: int = 1
    slowdown: float = 1.0
    """Factor of compute while communication runs."""
    host_noise: float = 0.2
    kernel_noise: float = 0.01
    message_noise: float = 0.03
    hiccup_probability: float = 0.0005
    device_spread: float = 0.004
    device_clock_us: float = 20.0
    """Largest offset between the clocks of a host and its device."""
    node_clock_us: float = 2000.0
    """Largest offset between nodes."""
    names: str = "full"
    """What communication kernels name: `full`, `no_groups` or `none`."""
    has_sequence_numbers: bool = False
    is_rocm: bool = False
    fault: Fault | None = None

    @property
    def has_peers(self) -> bool:
        """Whether several ranks do the same work."""
        return not (self.workload == "pipeline" and self.ranks == self.pp)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    number: int
    axis: str
    ranks: tuple[int, ...]

    def stream(self, extra: int = 0) -> int:
        """Return the stream of its communication."""
        return 20 + 4 * self.number + extra


def groups_by_rank(options: Options) -> list[dict[str, Group]]:
    """Return the groups of every rank by role: all, tp, pp, dp, ep, shard and replicate. Groups of one are omitted."""
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    per_stage, shard = options.ranks // options.pp, options.shard or options.ranks
    is_sharded = options.workload == "fsdp"
    by_rank: list[dict[str, Group]] = []
    for rank in range(options.ranks):
        stage, place = divmod(rank, per_stage)
        replica, part = divmod(place, options.tp)
        first, first_expert, first_shard = stage * per_stage, rank // options.ep * options.ep, rank // shard * shard
        members: dict[tuple[str, str], Sequence[int]] = {
            ("all", "default_pg"): range(options.ranks),
            ("tp", "mesh_tp"): range(first + replica * options.tp, first + (replica + 1) * options.tp),
            ("pp", "mesh_pp"): range(place, options.ranks, per_stage),
            ("ep", "mesh_ep"): range(first_expert, first_expert + options.ep),
        }
        if is_sharded:
            members["shard", "mesh_dp_shard"] = range(first_shard, first_shard + shard)
            members["replicate", "mesh_dp_replicate"] = range(rank % shard, options.ranks, shard)
        else:
            members["dp", "mesh_dp"] = range(first + part, first + per_stage, options.tp)
        by_rank.append({})
        for (role, axis), ranks in members.items():
            if len(ranks) > 1 or role == "all":
                key = axis, tuple(ranks)
                by_rank[rank][role] = groups.setdefault(key, Group(len(groups), axis, tuple(ranks)))
    return by_rank
