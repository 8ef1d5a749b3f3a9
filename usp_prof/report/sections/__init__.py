"""Sections of a report: `build_<id>(context, title)` returns one, or None if it has no content.

To add a section, write one function, a line in `SECTIONS`, its module in `MODULES`, and a test. An analysis has a
section with its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from usp_prof.report.document import Section
    from usp_prof.report.figures import Context

SECTIONS: tuple[tuple[str, str], ...] = (
    ("findings", "Findings"),
    ("step_time", "Steps"),
    ("breakdown", "Where the step goes"),
    ("overlap", "Communication by axis"),
    ("collectives", "Collectives"),
    ("pipeline", "Pipeline"),
    ("stragglers", "Stragglers"),
    ("critical_path", "Critical path"),
    ("mfu", "Model FLOPs utilization (MFU)"),
    ("kernels", "Kernels"),
    ("host", "Host"),
    ("memory", "Memory"),
    ("moe", "Experts"),
    ("cp", "Context parallelism"),
    ("clock", "Clocks"),
    ("timeline", "Timeline"),
    ("health", "Health of the traces"),
)
"""Id and title of each section, in the order of the report."""
MODULES = {
    "findings": "health",
    "step_time": "steps",
    "breakdown": "steps",
    "overlap": "communication",
    "collectives": "communication",
    "pipeline": "pipeline",
    "stragglers": "steps",
    "critical_path": "timeline",
    "mfu": "compute",
    "kernels": "compute",
    "host": "compute",
    "memory": "compute",
    "moe": "uneven_work",
    "cp": "uneven_work",
    "clock": "health",
    "timeline": "timeline",
    "health": "health",
}
"""Module of each section, loaded when it is needed."""


def sections(context: Context, without: Collection[str] = ()) -> tuple[Section, ...]:
    """Build every section with content, except those named in `without`."""
    built = (_build(context, name, title) for name, title in SECTIONS if name not in without)
    return tuple(section for section in built if section is not None and section.blocks)


def _build(context: Context, name: str, title: str) -> Section | None:
    module = import_module(f"usp_prof.report.sections.{MODULES[name]}")
    section: Section | None = getattr(module, f"build_{name}")(context, title)
    return section
