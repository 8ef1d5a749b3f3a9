"""Rows of a sweep: each configuration that was tried, what it gave or why it failed, and what the planner predicts.

The rows come from a folder of cells that were run here, or from a table that somebody published. `write` gives them as
one CSV table.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from usp_prof.model.printable import csv_cell
from usp_prof.planner.sweep.cells import configuration_of
from usp_prof.planner.sweep.outcome import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.sweep.cells import Cell
    from usp_prof.planner.sweep.outcome import Outcome
    from usp_prof.planner.sweep.runner import Sweep

NAN = math.nan
DEGREES = ("dp", "tp", "cp", "pp", "ep", "zero", "micro_batch", "micro_batches", "chunks", "replicas")
COLUMNS = (
    "model", "sequence", "devices", "nodes", *DEGREES, "batch", "schedule", "recompute", "dtype", "status", "reason",
    "step_ns", "tokens_per_second", "tokens_per_second_device", "mfu_fraction", "memory_bytes", "predicted_step_ns",
    "predicted_memory_bytes", "cell",
)  # fmt: skip
"""Columns of the table, in their order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration that was tried; figures are NaN where it failed or they are not known."""

    model: str
    devices: int
    nodes: int
    """0: the table tells no nodes."""
    configuration: Configuration | None
    """None: the trainer refused it before it had one."""
    status: Status
    reason: str = ""
    step_ns: float = NAN
    tokens_per_second: float = NAN
    mfu: float = NAN
    memory_bytes: float = NAN
    sequence: int = 0
    cell: str = ""
    predicted_step_ns: float = NAN
    predicted_memory_bytes: float = NAN

    @property
    def is_ok(self) -> bool:
        """Whether it was measured."""
        return self.status is Status.OK and self.tokens_per_second > 0

    @property
    def tokens_per_device(self) -> float:
        """Tokens per second of one device."""
        return self.tokens_per_second / self.devices

    @property
    def size(self) -> int:
        """Nodes where the table tells them, else devices."""
        return self.nodes or self.devices


def of_folder(sweep: Sweep, outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    """Give the rows of cells that were run here."""
    cells: dict[str, Cell] = {cell.name: cell for cell in sweep.cells}
    fixed = dict(sweep.fixed)
    rows = []
    for each in outcomes:
        configuration = configuration_of(cells[each.name], fixed)
        tokens = each.extra.get("tokens_per_step", 0)
        rows.append(
            Row(
                model=_model(each, fixed),
                devices=each.processes,
                nodes=0,
                configuration=configuration,
                status=each.status,
                reason=each.reason,
                step_ns=NAN if each.step_seconds is None else each.step_seconds * 1e9,
                tokens_per_second=NAN if each.tokens_per_second is None else each.tokens_per_second,
                mfu=NAN if each.mfu is None else each.mfu,
                memory_bytes=NAN if each.memory_bytes is None else float(each.memory_bytes),
                sequence=tokens // configuration.batch if configuration is not None else 0,
                cell=each.name,
            )
        )
    return tuple(rows)


def _model(outcome: Outcome, fixed: Mapping[str, str]) -> str:
    """Name a cell's model, with what of it differs from cell to cell."""
    name = outcome.options.get("model") or fixed.get("model", "tiny")
    own = [
        f"{option}={outcome.options[option]}"
        for option in ("layers", "sequence", "experts")
        if option in outcome.options
    ]
    return " ".join([name, *own])


def write(file: TextIO, rows: Sequence[Row]) -> None:
    """Write the table."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([csv_cell(_text(value)) for value in _values(row)])


def _values(row: Row) -> tuple[object, ...]:
    c = row.configuration
    own = [getattr(c, name) if c is not None else "" for name in (*DEGREES, "batch", "schedule", "recompute", "dtype")]
    if c is not None and c.pp == 1:
        own[-3] = ""
    return (
        row.model, row.sequence or "", row.devices, row.nodes or "", *own, row.status, row.reason, row.step_ns,
        row.tokens_per_second, row.tokens_per_device, row.mfu, row.memory_bytes, row.predicted_step_ns,
        row.predicted_memory_bytes, row.cell,
    )  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.5f}" if abs(value) < 10 else f"{value:.0f}"
    return str(value)
