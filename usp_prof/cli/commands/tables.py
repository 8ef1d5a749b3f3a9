"""Describe every table and column."""

from __future__ import annotations

import argparse

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from usp_prof.cli.opening import output
from usp_prof.model.schema import Kind, Schema
from usp_prof.tables import catalog

EXAMPLES = """\
  usp-prof tables
  usp-prof tables kernels steps
  usp-prof tables --names
"""
_TYPES = {Kind.INT: "BIGINT", Kind.FLOAT: "DOUBLE", Kind.TEXT: "VARCHAR", Kind.FLAG: "BOOLEAN"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("names", metavar="TABLE", nargs="*", help="only these tables")
    parser.add_argument("--names", dest="only_names", action="store_true", help="list the tables without their columns")


def run(args: argparse.Namespace) -> int:
    """Print the documentation."""
    schemas = [catalog.schema(name) for name in args.names] or list(catalog.SCHEMAS)
    console = output(args)
    for schema in schemas:
        console.print(Text.assemble((schema.name, "bold"), f"  {schema.doc}"))
        if not args.only_names:
            console.print(Padding(_documented(schema), (0, 0, 1, 2)))
    return 0


def _documented(schema: Schema) -> Table:
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("name", "type"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("meaning", overflow="fold")
    for column in schema.columns:
        unit = f" [{column.unit}]" if column.unit else ""
        grid.add_row(column.name, _TYPES[column.kind], Text(column.doc + unit))
    return grid
