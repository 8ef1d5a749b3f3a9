"""Tables for tests: rows of any table, rank by rank, with all other tables empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from usp_prof.model.schema import Scope
from usp_prof.tables import build, catalog
from usp_prof.tables.table_set import MemorySource, TableSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.contract import Manifest

SCHEMAS = tuple(schema for schema in catalog.SCHEMAS if schema.scope is Scope.RANK)
Row = dict[str, Any]


def run(by_rank: Mapping[int, Mapping[str, Sequence[Row]]], manifest: Manifest | None = None) -> TableSet:
    """Make the tables of a run. Rows get their rank, and ranks get a row of `ranks` unless given."""
    return TableSet({rank: _source(rank, tables) for rank, tables in by_rank.items()}, manifest=manifest)


def _source(rank: int, tables: Mapping[str, Sequence[Row]]) -> MemorySource:
    assert set(tables) <= {schema.name for schema in SCHEMAS}
    made = {}
    for schema in SCHEMAS:
        rows = tables.get(schema.name, [{"host": "here", "base_ns": 1}] if schema.name == "ranks" else [])
        made[schema.name] = build.table_from_rows(schema, [{"rank": rank} | row for row in rows])
    return MemorySource(made)


def step(number: int, start: int, end: int, **more: Any) -> Row:
    """One step's window; the host's is the same unless given."""
    return {
        "step": number, "start_ns": start, "end_ns": end, "host_start_ns": start, "host_end_ns": end,
        "source": "profiler_step",
    } | more  # fmt: skip


def work(kind: str, start: int, end: int, axis: str = "", **more: Any) -> Row:
    """One device activity."""
    return {"kind": kind, "start_ns": start, "dur_ns": end - start, "axis": axis, "name": kind, "step": 0} | more


def part(op: str, start: int, end: int, **more: Any) -> Row:
    """One rank's part of a collective, by default in the group of ranks 0 and 1."""
    return {
        "op": op, "group": "g@0,1", "axis": "dp", "axis_source": "description", "group_size": 2,
        "start_ns": start, "dur_ns": end - start, "step": 0, "library": "nccl",
    } | more  # fmt: skip
