"""Op tables: jobs published as a table of pipeline operations instead of traces.

The format is that of ByteDance's straggler study (OSDI'25). It has one row per operation of each step, data-parallel
rank and pipeline stage, with times in seconds from the start of the step. The ranks of a tensor-parallel group count as
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from usp_prof import limits
from usp_prof.columns.rows import group_codes
from usp_prof.model.errors import InputError

SCHEMA = pa.schema([
    ("dp_rank", pa.int64()), ("stage", pa.int64()), ("step", pa.int64()), ("optype", pa.string()),
    ("start_ts", pa.float64()), ("duration", pa.float64()), ("seq_id", pa.int64()), ("mc", pa.int64()),
])  # fmt: skip
COLUMNS = tuple(SCHEMA.names)
_RANGES = {"dp_rank": limits.RANK, "stage": limits.STAGE, "seq_id": limits.MICRO_BATCHES, "step": limits.NUMBER}
_SECOND = 1e9


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One operation of a stage's step: its kind (as written) and its number among operations of this kind."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """Start and end of each operation in nanoseconds, by operation, data-parallel rank and step."""

    ops: tuple[Op, ...]
    steps: tuple[int, ...]
    start_ns: NDArray[np.int64]
    """Operations by data-parallel ranks by steps."""
    end_ns: NDArray[np.int64]

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return max(op.stage for op in self.ops) + 1

    @property
    def replicas(self) -> int:
        """The number of data-parallel ranks."""
        return int(self.start_ns.shape[1])


def read_op_table(path: Path) -> OpTable:
    """Read a published table of operations."""
    if not path.is_file():
        raise InputError(f"{path} is not a file", hint="name a table of operations in Parquet")
    try:
        table = pq.read_table(path, columns=list(COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{path.name} is not a table of operations: {error}", hint=f"it needs the columns {', '.join(COLUMNS)}"
        ) from error
    columns = _checked(table, path)
    if (columns["mc"] > 0).any():
        raise InputError(
            f"{path.name} has several model chunks on a stage", hint="only plain pipelines can be replayed"
        )
    kinds, kind = np.unique(columns["optype"].astype(str), return_inverse=True)
    # For each row, the code of its operation (kind, number, stage) and the index of its step in `steps`.
    key = group_codes(kind, columns["seq_id"], columns["stage"])
    steps, step = np.unique(columns["step"], return_inverse=True)
    replicas = int(columns["dp_rank"].max()) + 1
    count = int(key.max()) + 1
    if len(table) < count * replicas * len(steps):
        raise InputError(f"{path.name} lacks operations of some ranks or steps", hint="leave incomplete steps out")
    # Operations by data-parallel ranks by steps, in seconds; NaN if there is no row.
    start = np.full((count, replicas, len(steps)), np.nan)
    end = start.copy()
    start_times = columns["start_ts"].astype(float)
    start[key, columns["dp_rank"], step] = start_times
    end[key, columns["dp_rank"], step] = start_times + columns["duration"].astype(float)
    if np.isnan(start).any():
        raise InputError(f"{path.name} lacks operations of some ranks or steps", hint="leave incomplete steps out")
    _, first_row = np.unique(key, return_index=True)
    ops = tuple(
        Op(str(kinds[kind[row]]), int(columns["seq_id"][row]), int(columns["stage"][row])) for row in first_row.tolist()
    )
    start_ns, end_ns = (np.rint(seconds * _SECOND).astype(np.int64) for seconds in (start, end))
    return OpTable(ops, tuple(map(int, steps.tolist())), start_ns, end_ns)


def _checked(table: pa.Table, path: Path) -> dict[str, NDArray[Any]]:
    """Return the columns as arrays; raise InputError for a wrong type, missing values, or values out of range."""
    hint = f"it needs rows of numbers in the columns {', '.join(COLUMNS)}; optype is text"
    if not len(table):
        raise InputError(f"{path.name} has no operations", hint=hint)
    columns: dict[str, NDArray[Any]] = {}
    for field in SCHEMA:
        try:
            column = table.column(field.name).cast(field.type)
        except pa.ArrowException as error:
            raise InputError(f"{path.name} has no usable column {field.name}: {error}", hint=hint) from error
        if column.null_count:
            raise InputError(f"{path.name} has rows without {field.name}", hint=hint)
        columns[field.name] = column.to_numpy()
    for name, within in _RANGES.items():
        if columns[name].min() < within.low or columns[name].max() > within.high:
            raise InputError(f"{path.name} has a {name} outside of {within}", hint=hint)
    for name in ("start_ts", "duration"):
        if not (np.abs(columns[name]) * _SECOND <= limits.MAX_WINDOW_NS).all():  # also false for NaN
            raise InputError(f"{path.name} has a {name} of more than {limits.MAX_WINDOW_NS} ns", hint=hint)
    return columns
