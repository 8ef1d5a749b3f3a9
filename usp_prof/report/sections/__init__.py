"""Sections of a report: `build_<id>(context)` returns the blocks of one; a section without blocks is left out.

The section of an analysis has its name; `build_<id>(context, result)` also gets its result, and its notes follow the
blocks. To add a section, write one function, a line in `SECTIONS`, its module in `MODULES`, and a test.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from usp_prof.analyses import NAMES
from usp_prof.report.document import Block, Section
from usp_prof.report.figures import Context
from usp_prof.report.sections.plain import notes

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
    built = (Section(name, title, _blocks(context, name)) for name, title in SECTIONS if name not in without)
    return tuple(section for section in built if section.blocks)


def _blocks(context: Context, name: str) -> tuple[Block, ...]:
    build = getattr(import_module(f"usp_prof.report.sections.{MODULES[name]}"), f"build_{name}")
    if name not in NAMES:
        return tuple(build(context))
    if name not in context.results:
        return ()
    return (*build(context, context.results[name]), *notes(context, name))
