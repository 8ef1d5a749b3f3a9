"""Which questions can be asked of a run? One question a module; results are frozen dataclasses.

Each module has `METRICS` (what it declares) and `compute(tables, selection) -> Result`. A new analysis is one file,
one line in `NAMES` and one test file.
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
"""The analyses in the order in which a report shows them; a test walks this folder against it."""
