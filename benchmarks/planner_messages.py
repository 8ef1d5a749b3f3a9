"""Data-parallel messages in a recorded step of our trainer, the reference for tests of the planner's counts.

    python benchmarks/planner_messages.py [FOLDER]     records each layout in FOLDER, unless it exists, and writes
                                                       tests/planner/recorded_messages.json

One member per pipeline rank is counted: the calls of all its data-parallel groups in one step, and their bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from harness import record

from usp_prof import open_run
from usp_prof.extras.planner.calibration import DATA_AXES
from usp_prof.extras.planner.calibration import recorded_configuration as configuration_of
from usp_prof.tables import calls

if TYPE_CHECKING:
    from usp_prof.run import Run

TABLE = Path(__file__).parents[1] / "tests" / "planner" / "recorded_messages.json"
RECORD = "--model tiny --layers 4 --sequence 16 --micro-batch 1 --steps 3 --profile-steps 1"
LAYOUTS = {
    "z0-acc": "--dp 4 --zero 0 --accumulate 3",
    "z1-acc": "--dp 4 --zero 1 --accumulate 3",
    "z2-acc": "--dp 4 --zero 2 --accumulate 3",
    "z3-acc": "--dp 4 --zero 3 --accumulate 3",
    "z1-pp": "--dp 2 --pp 2 --zero 1 --micro-batches 4",
    "z2-pp": "--dp 2 --pp 2 --zero 2 --micro-batches 4",
    "z3-pp": "--dp 2 --pp 2 --zero 3 --micro-batches 4",
    "z3-int": "--dp 2 --pp 2 --zero 3 --schedule interleaved --micro-batches 4",
    "z3-tp": "--dp 2 --tp 2 --zero 3 --accumulate 2",
    "z3-hsdp": "--dp 4 --zero 3 --accumulate 2 --dp-replicate 2",
    "z3-moe": "--dp 4 --zero 3 --accumulate 2 --experts 4 --ep 2",
    "z3-rec": "--dp 4 --zero 3 --accumulate 2 --recompute full",
}
"""Layouts of four ranks by name; all accumulate several micro-batches."""


def main() -> int:
    """Record the missing layouts, and write the table."""
    with tempfile.TemporaryDirectory() as fresh:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else fresh)
        for name, options in LAYOUTS.items():
            record(folder / name, 4, f"{RECORD} {options}")
        rows = [_row(options, open_run(folder / name)) for name, options in LAYOUTS.items()]
    TABLE.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _row(options: str, run: Run) -> dict[str, object]:
    manifest = run.tables.manifest
    if manifest is None or manifest.model is None:
        raise SystemExit(f"{options}: the run has no manifest")
    configuration = asdict(configuration_of(manifest, manifest.model))
    model = asdict(manifest.model)
    # One rank of each pipeline rank: its index on all other axes is 0.
    first_ranks = {
        place["pp"]: int(rank)
        for rank, place in manifest.coordinates.items()
        if not any(index for axis, index in place.items() if axis != "pp")
    }
    return {
        "options": options,
        "model": {name: value for name, value in model.items() if isinstance(value, int | str | bool)},
        "configuration": configuration,
        "messages": [_messages(run, rank) for _, rank in sorted(first_ranks.items())],
    }


def _messages(run: Run, rank: int) -> dict[str, dict[str, int]]:
    """Count a rank's calls in its recorded step, and their bytes, by operation."""
    columns = calls.match_calls(run.tables).columns()
    is_data = columns.satisfies("axis", lambda axis: axis in DATA_AXES) & (columns["step"] >= 0)
    has_rank = columns.satisfies("group", lambda group: str(rank) in group.partition("@")[2].split(","))
    op_of_call, operations = columns.codes("op")
    counts = {}
    for code, operation in enumerate(operations):
        rows = np.flatnonzero(is_data & has_rank & (op_of_call == code))
        if rows.size:
            counts[operation] = {"calls": len(rows), "bytes": int(columns["bytes"][rows].sum())}
    return counts


if __name__ == "__main__":
    sys.exit(main())
