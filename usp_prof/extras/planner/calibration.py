"""Calibration: planner constants learned from a recorded run, part by part, and the remaining error on that run.

Each part of the recorded step is compared with the prediction of the same configuration:

    compute          all device work is scaled to the mean rank's compute
    links of dp      the rate of its calls after all members arrived; the size of its buckets
    habits           the trainer whose ZeRO-2 and -3 messages (messages.py) are closest to those sent
    prefetch         share of compute that hides the gathers if weights are sent layer by layer
    axes             exposed messages of tp, cp, ep and dp are scaled to the measured ones
    pipeline         waits beyond the predicted bubble become the time of a hand-over
    fixed            what belongs to no axis (losses, barriers, the host between steps) is added to every step

The total is never scaled: the remaining difference is the error shown, and above 10% nothing is ranked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.analyses import breakdown, memory, mfu, step_time
from usp_prof.columns.arrays import Flags
from usp_prof.columns.intervals import union
from usp_prof.columns.rows import rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.contract import Manifest, ModelEntry
from usp_prof.extras.planner import compute, data_parallel, messages
from usp_prof.extras.planner.cases import Cases, cases_of, machine_of
from usp_prof.extras.planner.cluster import DEVICES_PER_NODE, NETWORK_RATE, Cluster
from usp_prof.extras.planner.predict import Prediction, predict
from usp_prof.extras.planner.profiles import PROFILES, Profile
from usp_prof.extras.planner.stages import stages_of
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import InputError
from usp_prof.model.hardware import Device, find, precision
from usp_prof.model.metric import Value
from usp_prof.model.shape import missing_sizes, shape_of
from usp_prof.schedule import schedule_by_name
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet

CLOSE = 0.1
"""Error of the recorded step above which predicted times are not shown."""
EXPOSED_OF_AXIS = {"tp": "tensor_exposed", "cp": "context_exposed", "ep": "expert_exposed", "dp": "data_exposed"}
DATA_AXES = ("dp", "dp_shard", "dp_replicate")
RINGS = {
    "all_reduce": data_parallel.reduce,
    "reduce_scatter": data_parallel.scatter,
    "all_gather": data_parallel.gather,
}
"""Calls of data parallelism, and the bytes of each according to the formulas."""
HABITS = ("sums_once", "layer_by_layer", "is_fsdp2", "ends_are_units")
SHARDING_TRAINERS = ("usp-prof", "megatron", "fsdp", "torchtitan")
"""Trainers of ZeRO-2 and -3; if their messages are equally close, the first is used."""
NEUTRAL = Profile(
    "the recorded run", gemm_share=1.0, host_layer=0.0, host_tensor=0.0, fixed=0.0, time_spread=0.1,
    mixture_spread=0.0, overhead_bytes=0.0, rest_kernels=0, bucket_bytes=25e6, least_buckets=4.0, sums_once=1,
    layer_by_layer=1, whole_experts=2,
)  # fmt: skip
"""Profile of the formulas alone, without constants measured on other trainers."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A recorded run as seen by the planner: model, configuration, cluster, and the prediction of the run itself."""

    model: ModelEntry
    configuration: Configuration
    cluster: Cluster
    profile: Profile
    prediction: Prediction
    measured_step_ns: float

    @property
    def error_fraction(self) -> float:
        """Relative error of the predicted step of the recorded configuration."""
        return self.prediction.step_ns / self.measured_step_ns - 1

    @property
    def is_close(self) -> bool:
        """Whether the prediction of the run itself is close enough to rank others."""
        return abs(self.error_fraction) <= CLOSE

    def check(self) -> None:
        """Raise `InputError` if the prediction of the run itself is too far off to rank others."""
        if not self.is_close:
            error = f"{self.error_fraction:+z.1%}"
            raise InputError(
                f"the recorded step itself is predicted with an error of {error}: nothing is ranked",
                hint="record more steps of an even run (see usp-prof analyze), or name a model and a device",
            )


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What was recorded: model, configuration and machine."""

    model: ModelEntry
    configuration: Configuration
    cluster: Cluster

    def cases(self, profile: Profile) -> Cases:
        """Return the configuration as columns of one row."""
        return cases_of(shape_of(self.model), machine_of(self.cluster), profile, [self.configuration])

    def predict(self, profile: Profile) -> Prediction:
        """Predict the configuration."""
        return predict(self.model, self.configuration, self.cluster, profile=profile)


def described(tables: TableSet, problem: str, needed: str) -> tuple[Manifest, ModelEntry]:
    """Return a run's manifest and model; raise `problem` if either is unknown, naming what to give with a model."""
    manifest = tables.manifest
    model = tables.assumptions.model or (manifest.model if manifest is not None else None)
    if manifest is None or model is None or missing_sizes(model) or not model.sequence:
        hint = f"record it with usp_prof.record, which writes run.json, or name a model and {needed}"
        raise InputError(problem, hint=hint)
    return manifest, model


def calibrate(tables: TableSet) -> Calibration:
    """Calibrate from a run; raise if the recording lacks required data."""
    manifest, model = described(tables, "the run's model and mesh are unknown", "a device")
    work = mfu.compute(tables)
    if work.is_contradicted:
        contradiction, _, hint = work.contradictions[0].detail.rpartition("; ")
        raise InputError(f"nothing can be planned from the run: {contradiction}", hint=hint)
    parts = breakdown.compute(tables).values()
    step_ns = _overall(step_time.compute(tables).values(), "step_time")
    compute_ns = _overall(parts, "compute_time")
    if not work.peak or not step_ns or not compute_ns or not manifest.tokens_per_step:
        raise InputError(
            "the device's peak, the step or the tokens of the run are unknown",
            hint="name a known device (--device, run.assume(device=...)); "
            "the recorder notes tokens_per_step and a measured CPU peak",
        )
    configuration = recorded_configuration(manifest, model)
    device = find(manifest.device)
    cluster = Cluster(
        device=manifest.device or "cpu",
        peak_flops=work.peak,
        memory_bytes=_memory_bytes(tables, device),
        memory_rate=device.memory_rate if device is not None else float("inf"),
        link_rate=(device.link_rate if device is not None else 0.0) or NETWORK_RATE,
        # Ranks per host, several per device if they share one.
        devices_per_node=manifest.devices_per_node * max(1, manifest.processes_per_device)
        or max(DEVICES_PER_NODE, configuration.devices),
        basis=f"run {manifest.name}",
    )
    recorded = _Recorded(model, configuration, cluster)
    profile = _with_compute(replace(NEUTRAL, is_paced=int(manifest.paced)), recorded, compute_ns)
    profile = _with_links(profile, recorded, tables)
    profile = _with_parts(profile, recorded, parts)
    return Calibration(model, configuration, cluster, profile, recorded.predict(profile), step_ns)


def _memory_bytes(tables: TableSet, device: Device | None) -> float:
    """Return the smallest memory of the run's devices: as reported by their driver, else from the device table."""
    reported_bytes = memory.capacity_of_ranks(tables, tables.ranks).values()
    return float(min(reported_bytes, default=device.memory_bytes if device is not None else float("inf")))


def recorded_configuration(manifest: Manifest, model: ModelEntry) -> Configuration:
    """Return the configuration in the manifest."""
    mesh = manifest.mesh
    data = mesh.get("dp", 0) or mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
    stages = max((len(held) for held in manifest.stages.values()), default=1)
    size = max(1, round(manifest.micro_batch_tokens / model.sequence)) if manifest.micro_batch_tokens else 1
    number = manifest.tokens_per_step // (model.sequence * size * data) if manifest.tokens_per_step else 0
    return Configuration(
        dp=data,
        tp=mesh.get("tp", 1),
        cp=mesh.get("cp", 1),
        pp=mesh.get("pp", 1),
        ep=mesh.get("ep", 1),
        zero=max(0, manifest.zero_stage),
        micro_batch=size,
        micro_batches=max(1, number or manifest.micro_batches),
        schedule=str(schedule_by_name(manifest.schedule) or manifest.schedule or "1f1b"),
        chunks=max(1, stages),
        recompute=Recompute(manifest.recompute) if manifest.recompute in list(Recompute) else Recompute.NONE,
        dtype=str(precision(manifest.dtype) or manifest.dtype or "bf16"),
        replicas=max(1, mesh.get("dp_replicate", 1)) if manifest.zero_stage == 3 else 1,
    )


def _with_compute(profile: Profile, recorded: _Recorded, measured_ns: float) -> Profile:
    """Scale all device work to the mean rank's compute per step."""
    c = recorded.cases(profile)
    layer, head = compute.layer(c), compute.head(c)
    micro_batch_seconds = recorded.model.layers * (layer.forward + layer.backward) + head.forward + head.backward
    micro_batches = recorded.configuration.micro_batches / recorded.configuration.pp
    seconds = float(np.ravel(micro_batch_seconds)[0]) * micro_batches
    return replace(profile, work_scale=measured_ns / 1e9 / seconds)


def _with_links(profile: Profile, recorded: _Recorded, tables: TableSet) -> Profile:
    """Fit the link rate and the bucket size from the calls of data parallelism.

    A call counts from its last arrival on. Calls of one kind and group share a link, so overlapping time counts once.
    """
    columns = calls.match_calls(tables).columns()
    of_group, _ = columns.codes("group")
    is_data = columns.satisfies("axis", lambda axis: axis in DATA_AXES) & columns["complete"] & (columns["step"] >= 0)
    is_data &= columns["group_size"] == recorded.configuration.shards
    if not is_data.any():
        return profile
    is_gloo = any(tables.columns("collectives", rank).matches("library", "gloo").any() for rank in tables.ranks[:1])
    profile = replace(profile, gloo=int(is_gloo), data_latency=0.0)
    profile = _with_habits(profile, recorded, columns, is_data)
    c = recorded.cases(profile)
    measured_ns = formula_ns = 0.0
    for kind, seconds in RINGS.items():
        rows_of_kind = np.flatnonzero(is_data & columns.matches("op", kind))
        formula_ns += 1e9 * float(np.sum(seconds(c, columns["bytes"][rows_of_kind])))
        for rows in rows_by_code(of_group[rows_of_kind]).values():
            of_one_group = rows_of_kind[rows]
            measured_ns += union(columns["last_ns"][of_one_group], columns["end_ns"][of_one_group]).length
    if measured_ns:
        profile = replace(profile, data_share=profile.data_share * formula_ns / measured_ns)
    sums = columns["bytes"][is_data & (columns.matches("op", "all_reduce") | columns.matches("op", "reduce_scatter"))]
    if not np.any(messages.goes_by_layer(c)) and len(sums):
        sums_in_step = sums.sum() / len(np.unique(columns["step"][is_data])) / len(np.unique(of_group[is_data]))
        profile = replace(profile, bucket_bytes=float(sums.max()), least_buckets=max(1.0, sums_in_step / sums.max()))
    return profile


def _with_habits(profile: Profile, recorded: _Recorded, columns: Columns, is_data: Flags) -> Profile:
    """Use the habits of the trainer whose sharding sends the number of bytes closest to those sent per step."""
    of_group, _ = columns.codes("group")
    steps_of_groups = len(np.unique(columns["step"][is_data])) * len(np.unique(of_group[is_data]))
    sent_bytes = float(columns["bytes"][is_data].sum()) / steps_of_groups
    candidates = []
    for name in SHARDING_TRAINERS:
        habits = {habit: getattr(PROFILES[name], habit) for habit in HABITS}
        candidate = replace(profile, **habits)
        c = recorded.cases(candidate)
        weights = messages.weights_of_fullest_rank(c, stages_of(c))
        planned_bytes = float(np.ravel(messages.gathered_bytes(c, weights) + messages.summed_bytes(c, weights))[0])
        candidates.append((abs(planned_bytes - sent_bytes), candidate))
    return min(candidates, key=lambda pair: pair[0])[1]


def _with_parts(profile: Profile, recorded: _Recorded, parts: list[Value]) -> Profile:
    """Scale each axis's exposed messages, and assign the rest to the pipeline's hand-over and the fixed part."""
    exposed = _by(parts, "exposed_comm_time", "axis")
    idle = _by(parts, "idle_time", "cause")
    measured = {axis: exposed.get(axis, 0.0) for axis in EXPOSED_OF_AXIS}
    measured["dp"] = sum(exposed.get(axis, 0.0) for axis in DATA_AXES)
    profile = _with_prefetch(profile, recorded, measured["dp"])
    configuration, first = recorded.configuration, recorded.predict(profile)
    # Messages sent layer by layer have no information on buckets that are reduced during backward, and vice versa.
    by_layer = np.any(messages.goes_by_layer(recorded.cases(profile)))
    scale_of_axis = EXPOSED_OF_AXIS | ({"dp": "sharded_exposed"} if by_layer else {})
    scales = {
        name: getattr(profile, name) * measured[axis] / first.exposed_ns[axis]
        for axis, name in scale_of_axis.items()
        if first.exposed_ns.get(axis, 0.0) > 0
    }
    # Early pipeline ranks wait for the last one at operations of all ranks (the loss, barriers).
    together = sum(time for axis, time in exposed.items() if axis in ("world", "unknown"))
    fixed = sum(time for cause, time in idle.items() if cause != "bubble")
    fixed += together if configuration.pp == 1 else 0.0
    fixed += _overall(parts, "memcpy_time") - first.optimizer_ns
    profile = replace(profile, fixed=max(fixed, 0.0) / 1e9, **scales)
    if configuration.pp == 1:
        return profile
    # Ranks without the head wait for the one with it, so the mean rank waits longer than the busiest rank by this time.
    second = recorded.predict(profile)
    waits = idle.get("bubble", 0.0) + exposed.get("pp", 0.0) + together
    uneven = second.compute_ns - _overall(parts, "compute_time")
    beyond = waits - uneven - second.bubble_ns
    hops = 2 * (configuration.pp - 1) * max(1, configuration.micro_batches / configuration.pp)
    return replace(profile, pipeline_hop=max(beyond, 0.0) / 1e9 / hops)


def _with_prefetch(profile: Profile, recorded: _Recorded, measured_ns: float) -> Profile:
    """Fit the share of compute that hides a layer's gathers, so that the exposed time equals the measured one."""
    if not np.any(messages.goes_by_layer(recorded.cases(profile))):
        return profile
    shares = np.linspace(0.0, 1.0, 101).tolist()
    shown = [recorded.predict(replace(profile, gather_overlap=share)).exposed_ns.get("dp", 0.0) for share in shares]
    # The largest overlap that explains it, so that messages that are hidden anyway do not read as no prefetch.
    nearest = min(reversed(range(len(shares))), key=lambda place: abs(shown[place] - measured_ns))
    return replace(profile, gather_overlap=shares[nearest])


def _overall(values: list[Value], metric: str) -> float:
    overall = next((value.value for value in values if value.metric.id == metric and not value.dims), 0.0)
    return overall if overall == overall else 0.0  # noqa: PLR0124 - not NaN


def _by(values: list[Value], metric: str, dimension: str) -> dict[str, float]:
    """Return a metric by one dimension only."""
    return {
        str(value.dims[dimension]): value.value
        for value in values
        if value.metric.id == metric and set(value.dims) == {dimension} and value.value == value.value
    }
