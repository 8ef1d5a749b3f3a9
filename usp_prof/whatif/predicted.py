"""Predicted run: its tables, which every analysis can read, and its files.

The replay moves the recorded events (`predicted_tables`). For another pipeline order, each rank's actions are placed at
their simulated times. Work outside the pipeline's window keeps its length. Inside, each action becomes a single compute
event that includes its kernels, collectives and transfers between stages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.contract import MANIFEST_NAME, TRACE_METADATA_KEY, Manifest, format_mark
from usp_prof.export.merged_trace import write_rank
from usp_prof.inputs.trace_record import EVENTS, THREADS, RepeatedArguments, TraceRecord
from usp_prof.model.errors import UsageError
from usp_prof.model.files import check_name
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import Topology
from usp_prof.replay.graph import events_of
from usp_prof.schedule_orders import Kind
from usp_prof.tables import clock
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.catalog import assemble, build_rank
from usp_prof.tables.table_set import MemorySource, TableSet
from usp_prof.whatif.layout import AXES, Layout
from usp_prof.whatif.predict import Prediction
from usp_prof.whatif.predicted_tables import retimed
from usp_prof.whatif.rescheduled import Rescheduled
from usp_prof.whole_files import whole_file


def predicted_tables(prediction: Prediction) -> TableSet:
    """Return the tables of the predicted run, with replayed times and the simulated pipeline.

    They contain the ranks that were replayed.
    """
    tables = prediction.replayed.tables
    return tables.memo(("predicted", prediction.edits), lambda: _predicted(tables, prediction))


def _predicted(tables: TableSet, prediction: Prediction) -> TableSet:
    before, after = prediction.layout_before, prediction.layout_after
    moved = retimed(tables, prediction.graph, prediction.timeline)
    if prediction.rescheduled is not None:
        moved = rearranged(moved, prediction.rescheduled)
    manifest = _manifest(tables.manifest, before, after)
    sources = {rank: MemorySource(_tables_of(moved, rank, before, after)) for rank in moved.ranks}
    health = [*moved.health, *_health_of(tables, prediction)]
    topology = _topology(tables.topology, before, after)
    assumptions = replace(
        tables.assumptions,
        device=after.device if after.device != before.device else tables.assumptions.device,
        tokens_per_step=after.tokens_per_step if tables.assumptions.tokens_per_step else 0,
    )
    predicted = TableSet(
        sources,
        manifest=manifest,
        health=health,
        topology=topology,
        assumptions=assumptions,
        cut_steps=moved.cut_steps,
    )
    clocks = clock.fit_clocks(moved)
    predicted.memo("clock", lambda: clocks)
    predicted.recorded = moved.recorded
    return predicted


def _tables_of(moved: TableSet, rank: int, before: Layout, after: Layout) -> dict[str, pa.Table]:
    names = ("events", "threads", "ranks", "steps", "kernels", "launches", "ops", "annotations", "collectives")
    of_name = {
        name: moved.arrow(name, [rank])
        for name in (*names, "activities", "device_waits", "groups", "actions", "memory", "health")
    }
    if before.ranks != after.ranks:
        size = np.full(of_name["ranks"].num_rows, after.ranks, np.int64)
        place = of_name["ranks"].column_names.index("world_size")
        of_name["ranks"] = of_name["ranks"].set_column(place, "world_size", pa.array(size))
    return of_name


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


def _health_of(tables: TableSet, prediction: Prediction) -> list[HealthRow]:
    """Return health rows which state that this run is a prediction, and which of its ranks are shown."""
    edits = ", ".join(str(edit) for edit in prediction.edits)
    rows = [HealthRow("predicted", Severity.INFO, detail=f"this run is a prediction from a recorded one with {edits}")]
    if prediction.replayed.note is not None:
        rows.append(replace(prediction.replayed.note, detail=f"the prediction is {prediction.replayed.which}"))
    before, after = prediction.layout_before, prediction.layout_after
    if before.ranks != after.ranks:
        detail = f"the predicted run has {after.ranks} ranks; the {len(tables.ranks)} recorded ones are shown"
        rows.append(HealthRow("predicted_ranks", Severity.INFO, detail=detail))
    absent = int((events_of(prediction.graph)[~prediction.graph.measured] < 0).sum())
    if absent:
        detail = "communication that the changes add affects the times, but is not in the tables"
        rows.append(HealthRow("predicted_calls", Severity.INFO, count=absent, detail=detail))
    return rows


# Predicted runs on disk: one trace per rank and a manifest, which every command can read.


def write_run(tables: TableSet, folder: Path, metadata: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the traces of all ranks and the manifest; `metadata` holds top-level fields of the recorded files."""
    check_name(folder)
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


# Tables of a run with another pipeline order.

_PACE = {Kind.FORWARD: "fwd", Kind.BACKWARD: "dgrad", Kind.INPUT_GRADIENT: "dgrad", Kind.WEIGHT_GRADIENT: "wgrad"}


def rearranged(tables: TableSet, other: Rescheduled) -> TableSet:
    """Return the tables of a run with another pipeline order; ranks with equal stages run the same actions."""
    windows, place = _windows(tables), _places(tables)
    saved = round(other.saved_ns)
    sources = {}
    for rank in tables.ranks:
        rows = _rank_rows(tables, rank, windows, other, place[rank], saved)
        events = table_from_rows(EVENTS, rows)
        nothing, sequence = RepeatedArguments.none(len(rows)), np.full(len(rows), -1)
        raw = TraceRecord(events, nothing, nothing, sequence, table_from_rows(THREADS, []), {}, (), "", 0)
        built = build_rank(raw, rank, tables.manifest)
        ranks = tables.arrow("ranks", [rank])
        sources[rank] = MemorySource({**built, "ranks": ranks})
    detail = (
        "each pipeline action is shown as one piece of compute, without its kernels and collectives; time between "
        "actions is bubble (here `idle: other`)"
    )
    health = [*tables.health, HealthRow("rearranged", Severity.INFO, detail=detail)]
    return assemble(sources, manifest=tables.manifest, health=health)


def _windows(tables: TableSet) -> dict[int, tuple[int, int]]:
    """Return each step's window: from the start of the first action to the end of the last, on the common clock."""
    clocks, windows = clock.fit_clocks(tables), dict[int, tuple[int, int]]()
    for rank in tables.ranks:
        actions = tables.columns("actions", rank)
        begin = clocks.align(rank, actions["device_start_ns"])
        end = clocks.align(rank, actions["device_end_ns"])
        for step in np.unique(actions["step"][actions["step"] >= 0]).tolist():
            of_step = actions["step"] == step
            first, last = int(begin[of_step].min()), int(end[of_step].max())
            low, high = windows.get(step, (first, last))
            windows[step] = (min(low, first), max(high, last))
    return windows


def _places(tables: TableSet) -> dict[int, int]:
    """Return each rank's position in the pipeline, which is that of its stages among all ranks' stages."""
    stages = {rank: tuple(np.unique(tables.columns("actions", rank)["stage"]).tolist()) for rank in tables.ranks}
    order = sorted(set(stages.values()))
    return {rank: order.index(own) for rank, own in stages.items()}


def _rank_rows(
    tables: TableSet, rank: int, windows: dict[int, tuple[int, int]], other: Rescheduled, place: int, saved: int
) -> list[dict[str, Any]]:
    """Return the events of a rank: each step's actions at their simulated times, and the step annotations.

    A step's window starts at its recorded start minus the time saved in earlier steps. Inside it, the times of the
    median step are scaled to the new order's share of the measured window.
    """
    clocks, steps = clock.fit_clocks(tables), tables.columns("steps", rank)
    line = other.timeline
    rows: list[dict[str, Any]] = []

    def add(name: str, start: int, end: int) -> None:
        rows.append(
            {
                "rank": rank, "event": len(rows), "phase": "X", "category": "user_annotation", "name": name,
                "process": str(rank), "thread": "1", "start_ns": start, "dur_ns": end - start, "args": "{}",
            }
        )  # fmt: skip

    actions = np.flatnonzero(line.rank == place)
    actions = actions[np.argsort(line.start[actions], kind="stable")]
    first, last = int(line.start[actions].min(initial=0)), int(line.end[actions].max(initial=0))
    laid = []  # by step: new start of its window, and scale factor of its actions
    for row, step in enumerate(steps["step"].tolist()):
        low, high = windows.get(step, (0, 0))
        # Time that the simulation does not explain is scaled in proportion.
        scale = (high - low) * other.other_ns / max(other.simulated_ns * line.window, 1.0)
        laid.append((int(clocks.local(rank, np.array([low]))[0]) - row * saved, scale))
    begin = int(steps["start_ns"][0]) if len(steps) else 0
    for row, step in enumerate(steps["step"].tolist()):
        opens, scale = laid[row]
        for place_in_line in actions.tolist() if step in windows else ():
            action = line.actions[place_in_line]
            start = opens + round(int(line.start[place_in_line]) * scale)
            stop = opens + round(int(line.end[place_in_line]) * scale)
            add(format_mark("pp", str(action.kind), stage=action.stage, mb=action.micro_batch), start, stop)
            add(format_mark("pace", _PACE[action.kind]), start, stop)
        end = int(steps["end_ns"][row]) - (row + 1) * saved
        if row + 1 < len(steps):  # a step lasts until the next one starts, and includes its actions
            end = min(end, laid[row + 1][0] + round(first * laid[row + 1][1]))
        end = max(end, opens + round(last * scale))
        add(f"ProfilerStep#{step}", begin, end)
        begin = end
    return rows
