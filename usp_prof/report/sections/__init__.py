"""What are the sections of a report? One module a section, `build(context)` gives it or None when it has nothing.

A new section is one file, one line in `SECTIONS` and one test; an analysis has a section of its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from usp_prof.report.context import Context
    from usp_prof.report.document import Section

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


def sections(context: Context, without: Collection[str] = ()) -> tuple[Section, ...]:
    """Build every section that has something to say, but those named in `without`."""
    built = (_build(context, name, title) for name, title in SECTIONS if name not in without)
    return tuple(section for section in built if section is not None and section.blocks)


def _build(context: Context, name: str, title: str) -> Section | None:
    section: Section | None = import_module(f"usp_prof.report.sections.{name}").build(context, title)
    return section
