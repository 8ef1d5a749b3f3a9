"""Under what circumstances was this run made? Its facts, from the manifest and the ranks' own metadata."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from usp_prof.gate.facts import MEASURED_PEAK, Fact, FactKind

if TYPE_CHECKING:
    from usp_prof.contract import Manifest
    from usp_prof.tables.table_set import TableSet


def facts_of(tables: TableSet) -> tuple[Fact, ...]:
    """Gather the facts of a run, sorted; what was not recorded is left out."""
    found = _from_ranks(tables)
    if tables.manifest is not None:
        found = {**found, **_from_manifest(tables.manifest)}
    return tuple(sorted(Fact(kind, name, value) for (kind, name), value in found.items() if value))


def _from_ranks(tables: TableSet) -> dict[tuple[FactKind, str], str]:
    seen: dict[str, set[str]] = {"device": set(), "device_kind": set(), "torch": set(), "backend": set(), "host": set()}
    world = -1
    for rank in tables.ranks:
        rows = tables.columns("ranks", rank)
        for name, texts in seen.items():
            texts.update(str(text) for text in rows[name] if text)
        world = max([world, *(int(size) for size in rows["world_size"])])
    joined = {name: ", ".join(sorted(texts)) for name, texts in seen.items()}
    return {
        (FactKind.HARDWARE, "device"): joined["device"] or joined["device_kind"],
        (FactKind.HARDWARE, "hosts"): str(len(seen["host"])) if seen["host"] else "",
        (FactKind.LAYOUT, "world size"): str(max(world, 0) or ""),
        (FactKind.SOFTWARE, "torch"): joined["torch"],
        (FactKind.SOFTWARE, "backend"): joined["backend"],
    }


def _from_manifest(manifest: Manifest) -> dict[tuple[FactKind, str], str]:
    model = manifest.model
    shape = (
        {name: value for name, value in asdict(model).items() if value and name != "flop_per_token"} if model else {}
    )
    hardware = {
        MEASURED_PEAK if manifest.peak_source.startswith("measured") else "peak": f"{manifest.peak_flops:g}"
        if manifest.peak_flops
        else "",
        "processes per device": str(manifest.processes_per_device),
        "paced": "yes" if manifest.paced else "no",
    }
    if manifest.device:
        hardware["device"] = manifest.device
    work = {
        "model": json.dumps(shape, sort_keys=True) if shape else "",
        "tokens per step": str(manifest.tokens_per_step or ""),
        "dtype": manifest.dtype,
    }
    layout = {
        "mesh": ",".join(f"{axis}={size}" for axis, size in sorted(manifest.mesh.items()) if size > 1),
        "schedule": manifest.schedule,
        "micro-batches": str(manifest.micro_batches or ""),
        "gradient accumulation": str(manifest.gradient_accumulation or ""),
        "recompute": manifest.recompute,
        "ZeRO stage": str(manifest.zero_stage) if manifest.zero_stage >= 0 else "",
    }
    kinds = ((FactKind.HARDWARE, hardware), (FactKind.WORK, work), (FactKind.LAYOUT, layout))
    found = {(kind, name): value for kind, facts in kinds for name, value in facts.items() if value}
    return {**found, **{(FactKind.SOFTWARE, name): value for name, value in manifest.software.items()}}
