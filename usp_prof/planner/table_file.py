"""A table's file: rows of a CSV file, and the same rows with their predictions beside them."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TextIO

from usp_prof.model.errors import UsageError
from usp_prof.model.files import csv_rows
from usp_prof.model.printable import csv_cell
from usp_prof.planner.table import ALIASES, COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.planner.predict import Prediction

GIVEN = (
    "step_ns", "step_low_ns", "step_high_ns", "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "tokens_per_second_device", "mfu_fraction", "memory_bytes", "memory_low_bytes", "memory_high_bytes", "fits",
    "fit_probability", "compute_ns", "exposed_tp_ns", "exposed_dp_ns", "exposed_cp_ns", "exposed_ep_ns", "bubble_ns",
    "optimizer_ns", "fixed_ns", "stall_fraction", "expected_step_ns", "host_bytes", "error",
)  # fmt: skip
"""Columns that a prediction adds."""


def read_rows(file: TextIO) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV file: its columns and its rows."""
    columns, rows = csv_rows(file, "table")
    known = {*COLUMNS, *ALIASES}
    if not known & set(columns):
        raise UsageError(f"the table has none of the columns {', '.join(list(COLUMNS)[:6])}, ...")
    return columns, rows


def write_rows(
    file: TextIO, columns: Sequence[str], rows: Sequence[Mapping[str, str]], found: Sequence[Prediction | str]
) -> None:
    """Write the rows with the columns of `GIVEN` beside them; a column of that name in the input is replaced."""
    kept = [column for column in columns if column not in GIVEN]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in (*kept, *GIVEN)])
    for row, prediction in zip(rows, found, strict=True):
        writer.writerow([csv_cell(text) for text in (*(row[column] for column in kept), *_values(prediction))])


def _values(p: Prediction | str) -> list[str]:
    if isinstance(p, str):
        return [""] * (len(GIVEN) - 1) + [p]
    c = p.configuration
    values = (
        p.step_ns, p.step_low_ns, p.step_high_ns, p.tokens_per_second, p.tokens_per_second * p.step_ns / p.step_high_ns,
        p.tokens_per_second * p.step_ns / p.step_low_ns, p.tokens_per_second / c.devices,
    )  # fmt: skip
    rest = [p.compute_ns, *(p.exposed_ns.get(axis, 0.0) for axis in ("tp", "dp", "cp", "ep"))]
    rest += [p.bubble_ns, p.optimizer_ns, p.fixed_ns]
    memory = (p.footprint.total_bytes, p.memory_low_bytes, p.memory_high_bytes)
    return [
        *(f"{value:.0f}" for value in values),
        f"{p.mfu:.5f}",
        *(f"{value:.0f}" for value in memory),
        str(int(p.fit_probability >= 0.5)),
        f"{p.fit_probability:.3f}",
        *(f"{value:.0f}" for value in rest),
        f"{p.stall_fraction:.3f}",
        f"{p.expected_step_ns:.0f}",
        f"{p.host_bytes:.0f}",
        "",
    ]
