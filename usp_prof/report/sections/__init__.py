"""Sections of a report: `build_<id>(context, title)` gives each, or None where it has nothing to say.

A new section is one function, one line in `SECTIONS`, its module in `MODULES`, and one test; an analysis has a section
of its name.
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
    ("mfu", "Model FLOP utilisation"),
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
"""The module of each section, loaded when the section is asked for."""


def sections(context: Context, without: Collection[str] = ()) -> tuple[Section, ...]:
    """Build every section that has something to say, but those named in `without`."""
    built = (_build(context, name, title) for name, title in SECTIONS if name not in without)
    return tuple(section for section in built if section is not None and section.blocks)


def _build(context: Context, name: str, title: str) -> Section | None:
    module = import_module(f"usp_prof.report.sections.{MODULES[name]}")
    section: Section | None = getattr(module, f"build_{name}")(context, title)
    return section
