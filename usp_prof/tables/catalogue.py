"""Catalogue: every table's schema, in the order in which the documentation shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.inputs.kineto import events, threads
from usp_prof.model.errors import unknown_name
from usp_prof.tables import (
    actions,
    activities,
    calls,
    clock,
    collectives,
    groups,
    health,
    kernels,
    launches,
    memory,
    ops,
    ranks,
    steps,
)
from usp_prof.tables import annotations as annotations_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from usp_prof.model.schema import Schema
    from usp_prof.tables.table_set import TableSet

SCHEMAS: tuple[Schema, ...] = (
    ranks.SCHEMA,
    steps.SCHEMA,
    activities.SCHEMA,
    kernels.SCHEMA,
    launches.SCHEMA,
    ops.SCHEMA,
    annotations_table.SCHEMA,
    collectives.SCHEMA,
    calls.SCHEMA,
    calls.PARTS,
    groups.SCHEMA,
    actions.SCHEMA,
    memory.SCHEMA,
    clock.SCHEMA,
    events.SCHEMA,
    threads.SCHEMA,
    health.SCHEMA,
)


RUN_TABLES: dict[str, Callable[[TableSet], pa.Table]] = {
    calls.SCHEMA.name: calls.build,
    calls.PARTS.name: calls.build_parts,
    health.SCHEMA.name: health.build_run,
    clock.SCHEMA.name: clock.build,
}
"""What makes the tables that are of the run as a whole."""


def schema(name: str) -> Schema:
    """Give the schema of a table by its name."""
    found = {schema.name: schema for schema in SCHEMAS}
    if name not in found:
        raise unknown_name("table", name, found)
    return found[name]


ROOMS = ("columns", "inputs", "model", "schedules", "tables")
"""Rooms whose code decides what tables are made of a file: their fingerprint is part of the key in the cache."""
