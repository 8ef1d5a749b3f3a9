"""Catalog: every table is listed once, documented, and part of the cache key."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import usp_prof
import usp_prof.inputs
import usp_prof.tables
from usp_prof._version import fingerprint
from usp_prof.model.errors import UsageError
from usp_prof.model.schema import RANK, Schema, Scope
from usp_prof.tables import catalog


def test_every_schema_of_every_module_is_listed() -> None:
    declared = set()
    for package in (usp_prof.inputs, usp_prof.tables):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                made = import_module(module.name)
                declared |= {value.name for value in vars(made).values() if isinstance(value, Schema)}
    assert {schema.name for schema in catalog.SCHEMAS} == declared


def test_the_fingerprint_covers_the_packages_that_build_tables() -> None:
    package = Path(usp_prof.__file__).parent
    assert all((package / room).is_file() or any((package / room).rglob("*.py")) for room in catalog.ROOMS)


def test_names_are_unique_and_everything_is_documented() -> None:
    assert len({schema.name for schema in catalog.SCHEMAS}) == len(catalog.SCHEMAS)
    for schema in catalog.SCHEMAS:
        assert schema.doc.endswith((".", ")")), schema.name
        assert len(set(schema.names)) == len(schema.names), schema.name
        assert all(column.doc for column in schema.columns)
        assert all(column.unit == "ns" for column in schema.columns if column.name.endswith("_ns")), schema.name


def test_tables_of_one_rank_begin_with_the_rank() -> None:
    assert all(schema.columns[0].name == RANK.name for schema in catalog.SCHEMAS if schema.scope is Scope.RANK)


def test_tables_of_the_run_have_a_builder() -> None:
    of_run = {schema.name for schema in catalog.SCHEMAS if schema.scope is Scope.RUN}
    assert set(catalog.RUN_TABLES) == of_run | {"health"}  # per rank, and for the whole run


def test_an_unknown_table_suggests_the_nearest() -> None:
    assert catalog.schema("kernels").name == "kernels"
    with pytest.raises(UsageError) as caught:
        catalog.schema("kernel")
    assert "kernels" in caught.value.hint


def test_the_fingerprint_follows_the_code_of_these_packages() -> None:
    tables = fingerprint(*catalog.ROOMS)
    assert tables == fingerprint.__wrapped__(*catalog.ROOMS)
    fingerprints = [fingerprint(), fingerprint("columns"), fingerprint("schedule_orders.py"), fingerprint("nothing")]
    assert len({tables, *fingerprints}) == 5
