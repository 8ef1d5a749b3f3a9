"""Synthetic runs that differ in one fault each: the clean run gives the true gain of a repair."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.run import Run, open_run

FAULTS: dict[str, list[dict[str, Any]]] = {
    "clean": [],
    "slow_rank": [{"kind": "slow_rank", "rank": 1, "factor": 1.4}],
    "slow_link": [{"kind": "slow_link", "rank": 0, "axis": "dp", "factor": 8.0}],
    "late_input": [{"kind": "late_input", "rank": 1, "delay_ns": 3_000_000}],
    "gc_pause": [{"kind": "gc_pause", "rank": 2, "delay_ns": 8_000_000}],
}
_FOLDER = TemporaryDirectory()


@cache
def run_with(fault: str, style: str = "nccl", *, described: bool = True) -> Run:
    """Return the run with one fault, without a manifest if not `described`."""
    return _made({"style": style, "faults": FAULTS[fault]}, described=described)


@cache
def run_of(text: str) -> Run:
    """Return a run with other settings, as JSON: `{"work": {"overlap_dp": false}}`."""
    return _made(json.loads(text), described=True)


def _made(changes: dict[str, Any], *, described: bool) -> Run:
    declared = {
        "mesh": {"dp": 2, "pp": 2},
        "seed": 5,
        **changes,
        "work": {"steps": 5, "micro_batches": 4, "schedule": "1F1B", **changes.get("work", {})},
    }
    folder = Path(_FOLDER.name) / str(len(list(Path(_FOLDER.name).iterdir())))
    write(Declaration.from_dict(declared), folder, described=described)
    return open_run(folder, cache_dir=folder / "cache")
