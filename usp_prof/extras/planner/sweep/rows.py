"""Rows of a sweep: each configuration tried, its result or failure, and the planner's prediction.

A cell that ran here first becomes an `Outcome`: measurements from the trainer's output, or the reason of its failure.
Outcomes, or a published table, become `Row`s, and these one CSV table.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from usp_prof.extras.planner.sweep.cells import Cell, configuration_of
from usp_prof.model.configuration import Configuration
from usp_prof.model.errors import InputError
from usp_prof.model.files import ERRORS, checked, json_object
from usp_prof.model.printable import csv_cell
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    from usp_prof.extras.planner.sweep.runner import Sweep

SETTLING = 2
"""Steps omitted before measuring; the first ones allocate, connect and compile."""
CELL_FILE = "cell.json"


class Status(StrEnum):
    """Final state of a cell."""

    OK = "ok"
    REFUSED = "refused"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    FAILED = "failed"
    """Failure of unknown cause, in a published table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished cell; figures are None if it failed. `reason` is the trainer's message."""

    name: str
    processes: int
    options: Mapping[str, str]
    status: Status
    reason: str = ""
    wall_seconds: float = 0.0
    step_seconds: float | None = None
    """Median step after the first `SETTLING` steps."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    convention: str = ""
    memory_bytes: int | None = None
    steps: int = 0
    model: str = ""
    sequence: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def figures_of_cell(lines: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a cell from the trainer's lines (`--metrics json`); empty if it completed no step."""
    steps = [line for line in map(json_object, lines) if line.get("seconds")]
    if not steps:
        return {}
    settled = steps[SETTLING:] or steps[1:] or steps
    seconds = median(line["seconds"] for line in settled)
    tokens = round(settled[-1]["tokens_per_second"] * settled[-1]["seconds"])
    middle = min(settled, key=lambda line: abs(line["seconds"] - seconds))
    shares = middle.get("mfu")
    model_match = re.search(r"^model: (\S+),", "\n".join(lines), re.MULTILINE)
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        # MFU is reported per step, so it is scaled to the median step by the ratio of their lengths.
        "mfu": shares * middle["seconds"] / seconds if shares is not None else None,
        "convention": middle.get("mfu_convention", ""),
        "memory_bytes": max((line.get("memory_bytes") or 0 for line in steps), default=0) or None,
        "steps": len(steps),
        "model": model_match[1] if model_match else "",
        "extra": {"tokens_per_step": tokens},
    }


def failure(status: int, errors: str) -> tuple[Status, str]:
    """Return why a cell failed, from its exit status and error output."""
    if re.search(r"OutOfMemoryError|out of memory|not enough memory|can't allocate memory", errors, re.IGNORECASE):
        line = next(
            (line for line in errors.splitlines() if re.search(r"memory", line, re.IGNORECASE)), "out of memory"
        )
        return Status.OUT_OF_MEMORY, line.strip()
    refused = re.search(r"^error: (.+)$", errors, re.MULTILINE)
    if refused:
        return Status.REFUSED, refused[1]
    killed = status == -9 or re.search(r"exitcode\s*: -9\b", errors)
    if killed:
        return Status.OUT_OF_MEMORY, "killed by the system (signal 9), probably because the host ran out of memory"
    raised = re.findall(r"^(?:\[rank\d+\]: ?)?((?:[\w.]*\.)?\w*(?:Error|Exception): .+)$", errors, re.MULTILINE)
    own = [line for line in raised if "ChildFailedError" not in line]
    last = [line.strip() for line in errors.splitlines() if line.strip()]
    last_words = own[-1] if own else last[-1] if last else "no output"
    return Status.CRASHED, f"exit status {status}: {last_words}"


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write an outcome to its cell's folder."""
    with whole_file(folder / CELL_FILE) as file:
        file.write((json.dumps(asdict(outcome), indent=1, sort_keys=True) + "\n").encode())


def read_outcome(folder: Path) -> Outcome | None:
    """Read a cell's outcome, or return None if it has not ended."""
    path = folder / CELL_FILE
    if not path.is_file():
        return None
    try:
        outcome = checked(Outcome, json.loads(path.read_text(encoding="utf-8")))
        if outcome.name != folder.name:
            raise ValueError(f"it names the cell {outcome.name!r}")
        if outcome.status is Status.OK and not (outcome.tokens_per_second or 0) > 0:
            raise ValueError("it succeeded but has no tokens per second")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    except ERRORS as error:
        raise InputError(
            f"{path} is not the outcome of a cell: {error}", hint="remove it to run the cell again"
        ) from error
    return outcome


NAN = math.nan
DEGREES = ("dp", "tp", "cp", "pp", "ep", "zero", "micro_batch", "micro_batches", "chunks", "replicas")
COLUMNS = (
    "model", "sequence", "devices", "nodes", *DEGREES, "batch", "schedule", "recompute", "dtype", "status", "reason",
    "step_ns", "tokens_per_second", "tokens_per_second_device", "mfu_fraction", "memory_bytes", "predicted_step_ns",
    "predicted_memory_bytes", "cell",
)  # fmt: skip
"""Columns of the table, in order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration tried; figures are NaN if it failed or they are unknown."""

    model: str
    devices: int
    nodes: int
    """0 if the table has no nodes."""
    configuration: Configuration | None
    """None if the trainer refused before it had a configuration."""
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
        """Nodes if the table has them, else devices."""
        return self.nodes or self.devices


def rows_of_folder(sweep: Sweep, outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    """Return the rows of cells that ran here."""
    cells: dict[str, Cell] = {cell.name: cell for cell in sweep.cells}
    fixed = dict(sweep.fixed)
    rows = []
    for outcome in outcomes:
        configuration = configuration_of(cells[outcome.name], fixed)
        tokens = outcome.extra.get("tokens_per_step", 0)
        rows.append(
            Row(
                model=_model(outcome, fixed),
                devices=outcome.processes,
                nodes=0,
                configuration=configuration,
                status=outcome.status,
                reason=outcome.reason,
                step_ns=NAN if outcome.step_seconds is None else outcome.step_seconds * 1e9,
                tokens_per_second=NAN if outcome.tokens_per_second is None else outcome.tokens_per_second,
                mfu=NAN if outcome.mfu is None else outcome.mfu,
                memory_bytes=NAN if outcome.memory_bytes is None else float(outcome.memory_bytes),
                sequence=tokens // configuration.batch if configuration is not None else 0,
                cell=outcome.name,
            )
        )
    return tuple(rows)


def _model(outcome: Outcome, fixed: Mapping[str, str]) -> str:
    """Return the name of a cell's model, with its options that differ from cell to cell."""
    name = outcome.options.get("model") or fixed.get("model", "tiny")
    own = [
        f"{option}={outcome.options[option]}"
        for option in ("layers", "sequence", "experts")
        if option in outcome.options
    ]
    return " ".join([name, *own])


def write_table(file: TextIO, rows: Sequence[Row]) -> None:
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
