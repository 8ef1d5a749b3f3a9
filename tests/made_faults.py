"""Made-up runs with one fault each, alike in everything else: what a repair is worth is known from the clean one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from usp_prof.run import Run, open_run
from usp_prof.synth.declaration import Declaration
from usp_prof.synth.write import write

FAULTS: dict[str, list[dict[str, Any]]] = {
    "clean": [],
    "slow_rank": [{"kind": "slow_rank", "rank": 1, "factor": 1.4}],
    "slow_link": [{"kind": "slow_link", "rank": 0, "axis": "dp", "factor": 8.0}],
    "late_input": [{"kind": "late_input", "rank": 1, "delay_ns": 3_000_000}],
    "gc_pause": [{"kind": "gc_pause", "rank": 2, "delay_ns": 8_000_000}],
}
_FOLDER = TemporaryDirectory()


@cache
def run_with(fault: str, style: str = "nccl") -> Run:
    """Give the run with one fault."""
    declared = Declaration.from_dict(
        {
            "mesh": {"dp": 2, "pp": 2},
            "style": style,
            "seed": 5,
            "work": {"steps": 5, "micro_batches": 4, "schedule": "1F1B"},
            "faults": FAULTS[fault],
        }
    )
    folder = Path(_FOLDER.name) / f"{style}-{fault}"
    write(declared, folder)
    return open_run(folder, cache_dir=Path(_FOLDER.name) / "cache")
