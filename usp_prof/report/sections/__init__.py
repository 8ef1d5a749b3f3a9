"""Sections of a report: `build_<id>(context)` returns the blocks of one; a section without blocks is left out.

The section of an analysis has its name; `build_<id>(context, result)` also gets its result, and its notes follow the
blocks. To add a section, write one function, a line in `SECTIONS`, and a test.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType

from usp_prof.analyses import NAMES
from usp_prof.report.document import Block, Section
from usp_prof.report.figures import Context
from usp_prof.report.sections.plain import notes

SECTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "findings": ("Findings", "health"),
        "step_time": ("Steps", "steps"),
        "breakdown": ("Where the step goes", "steps"),
        "overlap": ("Communication by axis", "communication"),
        "collectives": ("Collectives", "communication"),
        "pipeline": ("Pipeline", "pipeline"),
        "stragglers": ("Stragglers", "steps"),
        "critical_path": ("Critical path", "timeline"),
        "mfu": ("Model FLOPs utilization (MFU)", "compute"),
        "kernels": ("Kernels", "compute"),
        "host": ("Host", "compute"),
        "memory": ("Memory", "compute"),
        "moe": ("Experts", "uneven_work"),
        "cp": ("Context parallelism", "uneven_work"),
        "clock": ("Clocks", "health"),
        "timeline": ("Timeline", "timeline"),
        "health": ("Health of the traces", "health"),
    }
)
"""Title and module of each section by id, in the order of the report; a module is loaded when it is needed."""


def sections(context: Context, without: Collection[str] = ()) -> tuple[Section, ...]:
    """Build every section with content, except those named in `without`."""
    built = (
        Section(name, title, _blocks(context, name, module))
        for name, (title, module) in SECTIONS.items()
        if name not in without
    )
    return tuple(section for section in built if section.blocks)


def _blocks(context: Context, name: str, module: str) -> tuple[Block, ...]:
    build = getattr(import_module(f"usp_prof.report.sections.{module}"), f"build_{name}")
    if name not in NAMES:
        return tuple(build(context))
    if name not in context.results:
        return ()
    return (*build(context, context.results[name]), *notes(context, name))
