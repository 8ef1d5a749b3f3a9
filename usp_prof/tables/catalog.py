"""Catalog of tables: all schemas, the tables of one rank, and the assembly of a run from its ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from usp_prof.columns.arrow import Parted
from usp_prof.columns.table import Columns
from usp_prof.contract import Manifest
from usp_prof.inputs.trace_record import EVENTS, THREADS, TraceRecord, widened
from usp_prof.model.errors import unknown_name
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.schema import Schema
from usp_prof.tables import (
    actions,
    activities,
    calls,
    clock,
    collectives,
    device_waits,
    groups,
    health,
    kernels,
    launches,
    memory,
    ops,
    ranks,
)
from usp_prof.tables import annotations as annotation_table
from usp_prof.tables import steps as step_table
from usp_prof.tables.communication import unnamed_groups
from usp_prof.tables.communication.parts import find_parts
from usp_prof.tables.completeness import between_ranks
from usp_prof.tables.completeness.device_work import promises
from usp_prof.tables.completeness.losses import code_and_rank, losses
from usp_prof.tables.completeness.posted_calls import count_calls
from usp_prof.tables.events.devices import UNRECORDED
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.events.links import cut, link, shorten_rounded
from usp_prof.tables.parallelism import group_axes
from usp_prof.tables.parallelism.gloo_members import regrouped
from usp_prof.tables.parallelism.group_axes import apply
from usp_prof.tables.pipeline import inferred_actions
from usp_prof.tables.step_cuts import job_steps, marked_steps, recorded_ends
from usp_prof.tables.table_set import Source, TableSet

SCHEMAS: tuple[Schema, ...] = (
    ranks.SCHEMA,
    step_table.SCHEMA,
    activities.SCHEMA,
    kernels.SCHEMA,
    launches.SCHEMA,
    device_waits.SCHEMA,
    ops.SCHEMA,
    annotation_table.SCHEMA,
    collectives.SCHEMA,
    calls.SCHEMA,
    calls.PARTS,
    groups.SCHEMA,
    actions.SCHEMA,
    memory.SCHEMA,
    clock.SCHEMA,
    EVENTS,
    THREADS,
    health.SCHEMA,
)
"""Schemas of all tables, in the order of the documentation."""

RUN_TABLES: dict[str, Callable[[TableSet], pa.Table]] = {
    calls.SCHEMA.name: calls.build,
    calls.PARTS.name: calls.build_parts,
    health.SCHEMA.name: lambda tables: health.build(tables.health),
    clock.SCHEMA.name: clock.build,
}
"""Builders of the tables of the whole run."""

ROOMS = ("contract.py", "limits.py", "schedule.py", "schedule_orders.py", "columns", "inputs", "model", "tables")
"""Files and folders whose code determines the tables; their fingerprint is part of the cache key."""


def schema(name: str) -> Schema:
    """Return the schema of a table by its name."""
    schemas = {schema.name: schema for schema in SCHEMAS}
    if not isinstance(name, str) or name not in schemas:
        raise unknown_name("table", name, schemas)
    return schemas[name]


def build_rank(record: TraceRecord, rank: int, manifest: Manifest | None) -> dict[str, pa.Table | Parted]:
    """Build all tables of one rank from its file; axes that depend on other ranks are resolved at assembly.

    The two tables with a row for nearly every event are built in parts.
    """
    frame = EventFrame(record, rank)
    overrunning = cut(frame)
    if any(row.code == "finer_than_ns" for row in record.health):
        shorten_rounded(frame)
    links = link(frame)
    promised = promises(frame, links)
    steps = marked_steps.recorded(marked_steps.find(frame, links), frame, links, promised)
    parts = find_parts(frame, links)
    membership = groups.join(frame, parts)
    collective = collectives.build(frame, links, parts, membership, steps)
    kernel = kernels.build(frame, links, steps)
    activity = activities.build(frame, links, parts, collective, steps)
    return {
        "events": widened(EVENTS, record.events, rank),
        "threads": widened(THREADS, record.threads, rank).to_table(),
        "ranks": ranks.build(frame, manifest),
        "steps": step_table.build(rank, steps, recorded_ends.lacks_wait(steps, Columns(activity))),
        "kernels": kernel,
        "launches": launches.build(frame, links, promised, steps),
        "device_waits": device_waits.build(frame, links),
        "annotations": annotation_table.build(frame, steps),
        "collectives": collective,
        "activities": activity,
        "groups": groups.build(rank, membership.groups, count_calls(parts, membership, steps)),
        "actions": actions.build(frame, links, steps),
        "memory": memory.build(frame, steps),
        "ops": ops.build(frame, links, steps),
        "health": health.build(
            [*record.health, *health.find(frame, links, promised, steps, parts, kernel, overrunning)]
        ),
    }


def assemble(
    sources: Mapping[int, Source], *, manifest: Manifest | None = None, health: Iterable[HealthRow] = ()
) -> TableSet:
    """Combine ranks to a run; `health` has rows in addition to the ranks' own tables."""
    sources = regrouped(sources, group_axes.groups_of(sources))
    layout, health_of_axes = group_axes.resolve(sources, manifest)
    health_rows = sorted(
        {*health, *health_of_axes, *_of_ranks(sources), *_without_device_work(sources), *_in_light_mode(manifest)}
    )
    cut = job_steps.cut(apply(sources, layout), [*health_rows, *between_ranks.rows(sources)])
    cut_steps, health_of_ends = recorded_ends.cut_steps(cut.sources)
    cut_sources, of_groups = unnamed_groups.name_groups(cut.sources, group_axes.world_size(sources))
    tables = TableSet(
        inferred_actions.completed(cut_sources),
        manifest=manifest,
        health=[*cut.health, *health_of_ends, *of_groups],
        topology=layout.topology,
        cut_steps=cut_steps,
    )
    tables.health = [row for row in tables.health if row.code != "clock_jump" or not clock.is_pause(tables, row)]
    tables.uneven_steps = cut.incomparable
    damage = ", ".join(code_and_rank(row) for row in losses(tables))
    tables.incomparable = cut.incomparable or (f"the traces are damaged ({damage})" if damage else "")
    return tables


def _of_ranks(sources: Mapping[int, Source]) -> list[HealthRow]:
    """Return the health rows of the ranks' own tables."""
    fields = [field.name for field in dataclasses.fields(HealthRow)]
    rows_of_ranks = []
    for source in sources.values():
        rows = source.table("health").select(fields).to_pylist()
        rows_of_ranks += [HealthRow(**{**row, "severity": Severity(row["severity"])}) for row in rows]
    return rows_of_ranks


def _without_device_work(sources: Mapping[int, Source]) -> list[HealthRow]:
    """Return a health row for ranks whose device was not recorded."""
    detail = (
        "the trace has host activity only, so figures of device work are not shown; record with "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    )
    return [
        HealthRow("no_device_activity", Severity.ERROR, rank, detail=detail, file=str(own["file"][0]))
        for rank, source in sources.items()
        if (own := Columns(source.view("ranks"))).matches("device_kind", UNRECORDED).any()
    ]


def _in_light_mode(manifest: Manifest | None) -> list[HealthRow]:
    """Return the health row of a run recorded in light mode."""
    recorded = manifest.options.get("recorded") if manifest else None
    if not isinstance(recorded, dict) or recorded.get("level") != "light":
        return []
    detail = (
        "recorded in light mode: ops, shapes, FLOPs, host activity, memory and Python functions are missing; record a "
        "window with level='full' to see them"
    )
    return [HealthRow("light_mode", Severity.INFO, detail=detail)]
