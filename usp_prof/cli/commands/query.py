"""Query the tables of all ranks in SQL."""

from __future__ import annotations

import argparse
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.table import Table
from rich.text import Text

from usp_prof.cli.opening import note, open_from, output, run_options, write_out
from usp_prof.model.errors import UsageError
from usp_prof.model.files import write
from usp_prof.model.printable import FORMULA, SIGNED, counted, printable
from usp_prof.report.writers.terminal import columns_that_fit
from usp_prof.tables.sql_cells import Cells

EXAMPLES = """\
  usp-prof query traces/my-run \\
    "SELECT rank, count(*) AS kernels FROM kernels GROUP BY rank"
  usp-prof query traces/my-run \\
    "SELECT name, sum(dur_ns) AS ns FROM ops GROUP BY name ORDER BY ns DESC"
  usp-prof query traces/my-run \\
    "SELECT * FROM collectives WHERE axis = 'tp'" --format csv > tp.csv
  usp-prof query traces/my-run "SELECT * FROM ops" --format parquet -o o.parquet
"""
FORMATS = ("table", "csv", "json", "parquet")
_ROWS_SHOWN = 200
_PIPED_WIDTH = 10_000
"""Wide enough for every column: a pipe gets all of them, whatever COLUMNS says about the screen."""
_CELL_SHOWN = 10_000
"""Maximum characters per cell: folding a text of several megabytes takes minutes."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument("sql", metavar="SQL", help="one SELECT in DuckDB's SQL; see `usp-prof tables`")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file (needed for parquet)")


def run(args: argparse.Namespace) -> int:
    """Run the query and write the result."""
    if args.format == "parquet" and args.output is None:
        raise UsageError("parquet needs a file", hint="add -o rows.parquet")
    is_table = args.format == "table" and args.output is None
    cells = Cells.TEXT if is_table else Cells.TYPED if args.format == "parquet" else Cells.PLAIN
    answer = open_from(args).answer(args.sql, cells=cells)
    try:
        return _write_answer(args, answer)
    except pa.ArrowException as error:  # an interval in Parquet
        raise UsageError(
            f"the answer cannot be written as {args.format}: {error}",
            hint="ask for such a column as text: SELECT column::VARCHAR",
        ) from None


def _write_answer(args: argparse.Namespace, answer: pa.Table) -> int:
    if args.format == "table" and args.output is None:
        _show(args, answer)
        return 0
    data = _encode(answer, "csv" if args.format == "table" else args.format)
    if args.output is not None:
        write(args.output, data)
        note(args, f"wrote {counted(answer.num_rows, 'row')} to {args.output}")
    else:
        write_out(data.decode())
    return 0


def _show(args: argparse.Namespace, answer: pa.Table) -> None:
    console = output(args)
    columns = _columns(answer)
    n_shown = len(columns)
    if console.is_terminal:
        n_shown, _ = columns_that_fit(columns, console.width)
    else:  # a pipe is as wide as its content
        console.width = _PIPED_WIDTH
    box_style = box.SIMPLE_HEAD if console.is_terminal else None
    shown = Table(box=box_style, pad_edge=False, show_edge=False, padding=(0, 1 if box_style else 2, 0, 0))
    for name, _, is_number in columns[:n_shown]:  # a folded number would look like two
        shown.add_column(
            Text(name, overflow="ellipsis"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in zip(*(texts for _, texts, _ in columns[:n_shown]), strict=True):
        shown.add_row(*map(Text, row))
    console.print(shown)
    if n_shown < len(columns):
        left = ", ".join(name for name, _, _ in columns[n_shown:])
        note(args, f"columns not shown: {left} (widen the terminal, or use --format csv)")
    if answer.num_rows > _ROWS_SHOWN:
        note(args, f"the first {_ROWS_SHOWN} of {answer.num_rows} rows; --format csv prints all")
    if any(len(text) > _CELL_SHOWN for _, texts, _ in columns[:n_shown] for text in texts):
        note(args, f"cells are cut after {_CELL_SHOWN:,} characters; --format csv prints all")


def _columns(answer: pa.Table) -> list[tuple[str, list[str], bool]]:
    """Return each column's name, its values as text (long ones cut), and whether they are numbers."""
    shown = answer.slice(0, _ROWS_SHOWN)
    return [
        (
            field.name,
            ["" if value is None else _cut(_text(value, field.type)) for value in column.to_pylist()],
            _is_number(field.type),
        )
        for field, column in zip(shown.schema, shown.columns, strict=True)
    ]


def _text(value: Any, kind: pa.DataType) -> str:  # noqa: ANN401 - a number, a boolean or a text
    """Format a value as DuckDB does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(np.float32(value)) if pa.types.is_float32(kind) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_SHOWN else f"{text[:_CELL_SHOWN]}…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _encode(answer: pa.Table, form: str) -> bytes:
    if form == "json":
        # Values that may not fit 64 bits, such as sums, are decimals; they are written as numbers. JSON has neither
        # infinity nor NaN: they become null.
        encoder = msgspec.json.Encoder(decimal_format="number")
        return encoder.encode(_with_unique_names(answer).to_pylist()) + b"\n"
    sink = pa.BufferOutputStream()
    plain = _without_dictionaries(answer)
    if form == "parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415 - only for Parquet

        pq.write_table(_with_unique_names(plain), sink, compression="zstd")
    else:
        import pyarrow.csv  # noqa: PLC0415 - only for CSV

        # Nested values become JSON, and texts that spreadsheets would run are escaped.
        columns = [_csv_column(column) for column in plain.columns]
        pyarrow.csv.write_csv(pa.table(columns, names=plain.column_names), sink)
    return bytes(sink.getvalue().to_pybytes())


def _with_unique_names(answer: pa.Table) -> pa.Table:
    """Make column names unique (a, a_1, a_2), as DuckDB does in a subquery: a JSON object has each name once."""
    used_names = set(answer.column_names)
    seen: set[str] = set()
    names = []
    for name in answer.column_names:
        unique_name = name
        if name in seen:
            unique_name = next(
                candidate for candidate in (f"{name}_{number}" for number in count(1)) if candidate not in used_names
            )
            used_names.add(unique_name)
        seen.add(name)
        names.append(unique_name)
    return answer.rename_columns(names)


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_nested(column.type):
        encode = msgspec.json.Encoder(decimal_format="number").encode
        texts = [None if value is None else encode(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array([text and text.decode() for text in texts], pa.string())])
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pa.chunked_array([pa.array([text and printable(text) for text in column.to_pylist()], pa.string())])
        runs = pc.and_not(pc.match_substring_regex(column, FORMULA), pc.match_substring_regex(column, SIGNED))
        return pc.if_else(runs, pc.binary_join_element_wise("'", column, ""), column)
    return column


def _without_dictionaries(answer: pa.Table) -> pa.Table:
    fields = [
        pa.field(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in answer.schema
    ]
    return answer.cast(pa.schema(fields))
