"""What does the manifest say? One rank's own view, and the job's once rank 0 has heard of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from usp_prof.contract import GroupEntry, Manifest
from usp_prof.record.description import describe_model
from usp_prof.record.gathering import Part
from usp_prof.record.surroundings import CPU, software

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.record.options import Settings
    from usp_prof.record.peak import Peak
    from usp_prof.record.surroundings import Place
    from usp_prof.record.topology import Topology


def own_part(place: Place, topology: Topology, settings: Settings) -> Part:
    """Say what this rank knows at the start of the session."""
    return Part(
        rank=place.rank,
        host=place.host,
        device=place.device,
        device_key=place.device_key,
        coordinates=topology.coordinates.get(place.rank, {}),
        stages=list(settings.declared.stages),
        groups=[asdict(group) for group in topology.groups],
    )


def begin(place: Place, topology: Topology, model: object, settings: Settings, peak: Peak) -> Manifest:
    """Write down what every rank would say alike."""
    declared, window = settings.declared, settings.window
    return Manifest(
        name=declared.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mesh=dict(topology.mesh),
        axis_order=list(topology.mesh),
        coordinates={str(rank): dict(place) for rank, place in sorted(topology.coordinates.items())},
        schedule=declared.schedule,
        micro_batches=declared.micro_batches,
        gradient_accumulation=declared.gradient_accumulation,
        tokens_per_step=declared.tokens_per_step,
        micro_batch_tokens=declared.micro_batch_tokens,
        model=describe_model(model, declared.sequence),
        recompute=declared.recompute,
        dtype=dtype_name(declared.dtype),
        zero_stage=declared.zero_stage,
        device=declared.device or place.device,
        devices_per_node=place.devices_per_node,
        peak_flops=declared.peak_flops or peak.flops,
        peak_source=declared.peak_source if declared.peak_flops else peak.source,
        processes_per_device=place.processes_here if place.device == CPU else 1,
        software=software(),
        paced=declared.paced,
        faults=[dict(fault) for fault in declared.faults],
        options={
            **_plain(declared.options or {}),
            "recorded": {**asdict(window), **asdict(settings.content)},
        },
    )


def complete(base: Manifest, parts: Mapping[int, Part], world: int) -> Manifest:
    """Add to the common part what the ranks in `parts` said of themselves."""
    manifest = Manifest.from_dict(base.to_dict())
    groups: dict[tuple[str, tuple[int, ...]], GroupEntry] = {}
    for rank, part in sorted(parts.items()):
        manifest.hosts[str(rank)] = part.host
        if part.coordinates:
            manifest.coordinates[str(rank)] = {**manifest.coordinates.get(str(rank), {}), **part.coordinates}
        if part.stages:
            manifest.stages[str(rank)] = part.stages
        if part.join_rate is not None:
            manifest.join_rate[str(rank)] = part.join_rate
        for values in part.groups:
            _merge(groups, GroupEntry(**values))
        manifest.notes += [f"rank {rank}: {note}" for note in part.notes]
    manifest.groups = [groups[key] for key in sorted(groups, key=_group_order)]
    manifest.coordinates = dict(sorted(manifest.coordinates.items(), key=lambda item: int(item[0])))
    sharing = Counter((part.host, part.device_key) for part in parts.values())
    if sharing:
        counted = max(sharing.values())
        manifest.processes_per_device = counted if len(parts) == world else max(counted, base.processes_per_device)
    return manifest


def silent(parts: Mapping[int, Part], world: int) -> list[str]:
    """Name the ranks that did not report the end of their recording: they died, or were killed, or hang."""
    return [
        f"rank {rank}: did not end its recording" for rank in range(world) if rank not in parts or not parts[rank].final
    ]


def dtype_name(dtype: object) -> str:
    """Name a dtype as people do: bf16, fp16, fp32, fp64; anything else as it calls itself."""
    name = str(dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}.get(name, name)


def _merge(groups: dict[tuple[str, tuple[int, ...]], GroupEntry], entry: GroupEntry) -> None:
    known = groups.setdefault((entry.name, tuple(entry.ranks)), entry)
    known.axes += [axis for axis in entry.axes if axis not in known.axes]


def _group_order(key: tuple[str, tuple[int, ...]]) -> tuple[bool, int, str, tuple[int, ...]]:
    name, ranks = key
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name, ranks)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever an option holds
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
