"""Declared runs, written by `usp_prof.extras.synth` and read like any run, and the metrics that analyses declare."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from usp_prof.analyses import NAMES
from usp_prof.extras.synth.write import TRUTH_NAME, write
from usp_prof.model.finding import JOB_SLOWDOWN, REPAIR_GAIN
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.extras.synth.declaration import Declaration
    from usp_prof.model.metric import Metric
    from usp_prof.tables.table_set import TableSet


def read(run: Declaration, folder: Path) -> tuple[TableSet, dict[str, Any]]:
    """Return the tables of the run, and its ground truth."""
    write(run, folder / "run")
    truth = json.loads((folder / "run" / TRUTH_NAME).read_text())
    return open_run(folder / "run", cache_dir=folder / "cache").tables, truth


def declared_metrics() -> dict[str, Metric]:
    """Return the metrics that the analyses and findings declare, by id."""
    modules = [import_module(f"usp_prof.analyses.{name}") for name in NAMES]
    declared = [metric for module in modules for metric in module.METRICS]
    return {metric.id: metric for metric in (*declared, JOB_SLOWDOWN, REPAIR_GAIN)}
