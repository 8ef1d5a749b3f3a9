"""Op tables: jobs that were published as a table of pipeline operations instead of traces.

The format is that of ByteDance's straggler study (OSDI'25): one row for each operation of each (step, data-parallel
rank, pipeline stage), times in seconds from the step's begin, the ranks of a tensor-parallel group as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.columns.rows import group_codes
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc")
_SECOND = 1e9


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One operation of a stage's step: its kind (as written) and its number among those of its kind."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """When each operation ran, in nanoseconds: an array of (data-parallel rank, step) for each operation."""

    ops: tuple[Op, ...]
    steps: tuple[int, ...]
    start_ns: NDArray[np.int64]
    """Operations by data-parallel ranks by steps."""
    end_ns: NDArray[np.int64]

    @property
    def stages(self) -> int:
        """Count the pipeline's stages."""
        return max(op.stage for op in self.ops) + 1

    @property
    def replicas(self) -> int:
        """Count the data-parallel ranks."""
        return int(self.start_ns.shape[1])


def read_op_table(path: Path) -> OpTable:
    """Read a published table of operations."""
    try:
        table = pq.read_table(path, columns=list(COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{path.name} is no table of operations: {error}", hint=f"it needs the columns {', '.join(COLUMNS)}"
        ) from error
    columns: dict[str, Any] = {name: table.column(name).to_numpy() for name in COLUMNS}
    if (columns["mc"] > 0).any():
        raise InputError(
            f"{path.name} has several model chunks on a stage", hint="only plain pipelines can be replayed"
        )
    kinds, kind = np.unique(columns["optype"].astype(str), return_inverse=True)
    key = group_codes(kind, columns["seq_id"], columns["stage"])
    steps, step = np.unique(columns["step"], return_inverse=True)
    replicas = int(columns["dp_rank"].max()) + 1
    count = int(key.max()) + 1
    start = np.full((count, replicas, len(steps)), np.nan)
    end = start.copy()
    begun = columns["start_ts"].astype(float)
    start[key, columns["dp_rank"], step] = begun
    end[key, columns["dp_rank"], step] = begun + columns["duration"].astype(float)
    if np.isnan(start).any():
        raise InputError(f"{path.name} lacks operations of some ranks or steps", hint="leave incomplete steps out")
    first = np.unique(key, return_index=True)[1]
    ops = tuple(
        Op(str(kinds[kind[row]]), int(columns["seq_id"][row]), int(columns["stage"][row])) for row in first.tolist()
    )
    whole = tuple(int(number) for number in steps.tolist())
    return OpTable(ops, whole, *(np.rint(t * _SECOND).astype(np.int64) for t in (start, end)))
