"""Tables: each is declared once, built by its module, and listed."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from tiny import Trace, table_set

import usp_prof.tables
from usp_prof.inputs.trace_record import EVENTS, THREADS
from usp_prof.model.schema import Schema, Scope
from usp_prof.tables.build import arrow_schema
from usp_prof.tables.catalog import SCHEMAS

MODULES = {
    name: module
    for _, name, _ in pkgutil.iter_modules(usp_prof.tables.__path__)
    if hasattr(module := importlib.import_module(f"usp_prof.tables.{name}"), "SCHEMA")
}
OF_RANK = [schema for schema in SCHEMAS if schema.scope is Scope.RANK]


@pytest.mark.parametrize("name", MODULES)
def test_each_table_module_has_a_schema_and_build_and_is_listed(name: str) -> None:
    module = MODULES[name]
    assert isinstance(module.SCHEMA, Schema)
    assert callable(module.build)
    assert module.SCHEMA in SCHEMAS
    assert module.SCHEMA.name == name


def test_every_listed_table_has_a_module_and_a_unique_name() -> None:
    own = [module.SCHEMA for module in MODULES.values()]
    shared = {EVENTS.name, THREADS.name}
    assert {s.name for s in SCHEMAS} - shared - {s.name for s in own} <= {"call_parts"}
    assert len({schema.name for schema in SCHEMAS}) == len(SCHEMAS)


@pytest.mark.parametrize("schema", OF_RANK, ids=lambda schema: schema.name)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_table_of_a_tiny_trace_matches_its_schema(schema: Schema, device: str) -> None:
    tables = table_set(Trace(device=device).op("aten::mm", 10, 20))
    table = tables.columns(schema.name, 0).arrow
    assert table.schema.equals(arrow_schema(schema)) or schema.name in ("events", "threads")
    assert tuple(table.column_names) == schema.names
