"""Analyses of a run, one module per question; results are frozen dataclasses.

Each module has `METRICS` (the metrics that it declares) and `compute(tables, selection) -> Result`. A new analysis
takes one file, one line in `NAMES` and one test file.
"""

NAMES: tuple[str, ...] = (
    "step_time",
    "breakdown",
    "overlap",
    "collectives",
    "clock",
    "pipeline",
    "stragglers",
    "critical_path",
    "kernels",
    "mfu",
    "host",
    "memory",
    "moe",
    "cp",
)
"""The analyses, in report order. A test compares the list with this folder."""
