"""What does a recorded run teach the planner? The efficiency that its compute reached, its links' rate, and the error.

The error is told by predicting the recorded configuration itself: it is shown beside every plan made from the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from usp_prof.analyses import breakdown, collectives, memory, mfu, step_time
from usp_prof.model import flops
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import InputError
from usp_prof.model.hardware import find
from usp_prof.planner.cluster import DEVICES_PER_NODE, Cluster
from usp_prof.planner.prediction import Prediction, predict

if TYPE_CHECKING:
    from usp_prof.contract import Manifest, ModelEntry
    from usp_prof.model.metric import Value
    from usp_prof.tables.table_set import TableSet
LARGE_BYTES = 1 << 16
"""Classes of calls that tell a link's rate; smaller ones tell its latency."""
WIDE_AXES = ("dp", "dp_shard", "dp_replicate", "tp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A recorded run as the planner sees it: model, configuration, cluster, and what it predicts of the run itself."""

    model: ModelEntry
    configuration: Configuration
    cluster: Cluster
    prediction: Prediction
    measured_step_ns: float
    measured_memory_bytes: float

    @property
    def error_fraction(self) -> float:
        """How far the prediction of the recorded configuration is from the measured step."""
        return self.prediction.step_ns / self.measured_step_ns - 1

    @property
    def memory_error_fraction(self) -> float:
        """How far the predicted peak is from the measured one; NaN when the trace holds no memory events."""
        return self.prediction.footprint.total_bytes / self.measured_memory_bytes - 1


def calibrate(tables: TableSet) -> Calibration:
    """Learn from a run; raises with what the recording lacks."""
    manifest = tables.manifest
    model = tables.assumptions.model or (manifest.model if manifest is not None else None)
    if manifest is None or model is None or not (model.layers and model.hidden and model.sequence):
        raise InputError(
            "the run does not tell its model and mesh, so that nothing can be planned from it",
            hint="record it with usp_prof.record, which writes run.json, or plan with --model and --device",
        )
    work = mfu.compute(tables)
    step = _whole(step_time.compute(tables).values(), "step_time")
    compute = _whole(breakdown.compute(tables).values(), "compute_time")
    if not work.peak or not step or not compute or not manifest.tokens_per_step:
        raise InputError(
            "the run does not tell the device's peak, its step or its tokens",
            hint="give --device NAME for a known device; the recorder notes tokens_per_step and a measured CPU peak",
        )
    configuration = recorded_configuration(manifest, model)
    share = (flops.hardware_per_token(model, "causal", manifest.recompute) or 0.0) * manifest.tokens_per_step
    best = share / configuration.devices / work.peak * 1e9
    device = find(manifest.device)
    cluster = Cluster(
        device=manifest.device or "cpu",
        peak_flops=work.peak,
        memory_bytes=device.memory_bytes if device is not None else float("inf"),
        memory_rate=device.memory_rate if device is not None else float("inf"),
        link_rate=device.link_rate if device is not None else float("inf"),
        devices_per_node=manifest.devices_per_node or max(DEVICES_PER_NODE, configuration.devices),
        efficiency=best / compute,
        basis=f"run {manifest.name}",
    )
    cluster = _with_links(cluster, tables, configuration)
    prediction = predict(model, configuration, cluster)
    peak = _whole(memory.compute(tables).values(), "peak_memory")
    return Calibration(model, configuration, cluster, prediction, step, peak or float("nan"))


def recorded_configuration(manifest: Manifest, model: ModelEntry) -> Configuration:
    """Read the configuration off the manifest."""
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
        schedule=manifest.schedule or "1f1b",
        chunks=max(1, stages),
        recompute=Recompute(manifest.recompute) if manifest.recompute in list(Recompute) else Recompute.NONE,
        dtype=manifest.dtype or "bf16",
    )


def _whole(values: list[Value], metric: str) -> float:
    found = next((value.value for value in values if value.metric.id == metric and not value.dims), 0.0)
    return found if found == found else 0.0  # noqa: PLR0124 - not NaN


def _with_links(cluster: Cluster, tables: TableSet, configuration: Configuration) -> Cluster:
    """Take rate and latency from the run's own calls inside a node, where it has such calls.

    Messages between pipeline stages are left out: their time is mostly the wait for the other side; small calls of no
    axis (losses, barriers) say nothing of a link.
    The rate is the best bus bandwidth of any size class, the latency what a hop of the smallest class took.
    """
    degrees = configuration.degrees()
    kinds = [
        kind
        for kind in collectives.compute(tables).kinds
        if kind.busbw > 0 and not kind.inter_node and kind.axis in WIDE_AXES
    ]
    large = [kind.busbw for kind in kinds if kind.size_bytes >= LARGE_BYTES]
    if not large:
        return cluster
    least = min(kinds, key=lambda kind: kind.size_bytes)
    hops = max(1, degrees.get(least.axis, 2) - 1)
    return replace(
        cluster,
        link_rate=max(large),
        link_share=1.0,
        node_latency_ns=least.transfer_ns / max(1, least.complete) / hops,
    )
