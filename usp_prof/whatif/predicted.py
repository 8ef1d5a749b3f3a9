"""Predicted run: its tables, which every analysis can be asked about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.contract import MANIFEST_NAME, TRACE_METADATA_KEY
from usp_prof.export.merged_trace import write_rank
from usp_prof.model.errors import UsageError
from usp_prof.model.health import HealthRow, Severity
from usp_prof.replay.graph import events_of
from usp_prof.tables import clock
from usp_prof.tables.table_set import MemorySource, TableSet
from usp_prof.whatif.layout import AXES
from usp_prof.whatif.predicted_tables import retimed
from usp_prof.whatif.reordering.rearranged import rearranged
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from usp_prof.contract import Manifest
    from usp_prof.model.topology import Topology
    from usp_prof.whatif.layout import Layout
    from usp_prof.whatif.predict import Prediction


def predicted_tables(tables: TableSet, prediction: Prediction) -> TableSet:
    """Give the tables of the predicted run: moved as the replay moves it, the pipeline as it is simulated."""
    return tables.memo_as_assumed(("predicted", prediction.edits), lambda: _predicted(tables, prediction))


def _predicted(tables: TableSet, prediction: Prediction) -> TableSet:
    before, after = prediction.layout_before, prediction.layout_after
    moved = retimed(tables, prediction.graph, prediction.timeline)
    if prediction.rescheduled is not None:
        moved = rearranged(moved, prediction.rescheduled)
    manifest = _manifest(tables.manifest, before, after)
    sources = {rank: MemorySource(_tables_of(moved, rank, before, after)) for rank in moved.ranks}
    health = [*moved.health, *_told(tables, prediction)]
    topology = _topology(tables.topology, before, after)
    found = TableSet(sources, manifest=manifest, health=health, topology=topology)
    found.assumptions = replace(
        tables.assumptions, device=after.device if after.device != before.device else tables.assumptions.device
    )
    clocks = clock.of(moved)
    found.memo("clock", lambda: clocks)
    found.recorded = moved.recorded
    return found


def _tables_of(moved: TableSet, rank: int, before: Layout, after: Layout) -> dict[str, pa.Table]:
    names = ("events", "threads", "ranks", "steps", "kernels", "launches", "ops", "annotations", "collectives")
    found = {
        name: moved.arrow(name, [rank]) for name in (*names, "activities", "groups", "actions", "memory", "health")
    }
    if before.ranks != after.ranks:
        size = np.full(found["ranks"].num_rows, after.ranks, np.int64)
        place = found["ranks"].column_names.index("world_size")
        found["ranks"] = found["ranks"].set_column(place, "world_size", pa.array(size))
    return found


def _manifest(manifest: Manifest | None, before: Layout, after: Layout) -> Manifest | None:
    if manifest is None:
        return None
    mesh = {**manifest.mesh, **{axis: after.degree(axis) for axis in AXES if after.degree(axis) != before.degree(axis)}}
    return replace(
        manifest,
        mesh=mesh,
        zero_stage=after.zero,
        recompute=after.recompute,
        schedule=after.schedule,
        micro_batches=after.micro_batches if after.micro_batches != before.micro_batches else manifest.micro_batches,
        micro_batch_tokens=after.micro_batch_tokens,
        tokens_per_step=after.tokens_per_step,
        dtype=after.dtype,
    )


def _topology(topology: Topology, before: Layout, after: Layout) -> Topology:
    sizes = dict(topology.axes)
    for axis in AXES:
        if after.degree(axis) != before.degree(axis):
            sizes[axis] = after.degree(axis)
    return replace(topology, axes={axis: size for axis, size in sizes.items() if size > 1})


def _told(tables: TableSet, prediction: Prediction) -> list[HealthRow]:
    """Say that this never ran, and which of its ranks are shown."""
    edits = ", ".join(str(edit) for edit in prediction.edits)
    rows = [
        HealthRow(
            "predicted", Severity.INFO, detail=f"this run was predicted from a recorded one with {edits}; it never ran"
        )
    ]
    before, after = prediction.layout_before, prediction.layout_after
    if before.ranks != after.ranks:
        detail = f"of its {after.ranks} ranks the {len(tables.ranks)} that were recorded are shown"
        rows.append(HealthRow("predicted_ranks", Severity.INFO, detail=detail))
    absent = int((events_of(prediction.graph)[~prediction.graph.measured] < 0).sum())
    if absent:
        detail = "communication that the changes add has its effect on the times, but is not in the tables itself"
        rows.append(HealthRow("predicted_calls", Severity.INFO, count=absent, detail=detail))
    return rows


# Predicted runs on disk: a trace for each rank and a manifest, which every command reads.


def write_run(tables: TableSet, folder: Path, metadata: Mapping[int, Mapping[str, Any]]) -> None:
    """Write all ranks; `metadata` has the top-level fields of the recorded files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="name a new folder with -o, or a file such as what.json.gz")
    folder.mkdir(parents=True, exist_ok=True)
    for rank in tables.ranks:
        own = dict(metadata.get(rank, {}))
        info = own.get("distributedInfo")
        if not isinstance(info, dict):
            own["distributedInfo"] = {"rank": rank, "world_size": len(tables.ranks)}
        own.pop(TRACE_METADATA_KEY, None)
        write_rank(tables, rank, folder / f"rank{rank}.json.gz", own)
    if tables.manifest is not None:
        with whole_file(folder / MANIFEST_NAME) as file:
            file.write(json.dumps(tables.manifest.to_dict(), indent=1).encode())
