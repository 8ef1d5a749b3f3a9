"""What are the sections of a report? One module a section, `build(context)` gives it or None when it has nothing.

An analysis without a section module of its own is shown by `plain`: its metrics, its table and its notes. A new
section is one file, one line in `SECTIONS` and one test file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from usp_prof.report.sections import plain

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

OWN = frozenset(
    {
        "findings",
        "step_time",
        "breakdown",
        "overlap",
        "collectives",
        "pipeline",
        "stragglers",
        "critical_path",
        "mfu",
        "kernels",
        "host",
        "memory",
        "clock",
        "timeline",
        "health",
    }
)
"""Sections with a module of their own."""


def sections(context: Context, without: Collection[str] = ()) -> tuple[Section, ...]:
    """Build every section that has something to say, but those named in `without`."""
    built = (_build(context, name, title) for name, title in SECTIONS if name not in without)
    return tuple(section for section in built if section is not None and section.blocks)


def _build(context: Context, name: str, title: str) -> Section | None:
    if name in OWN:
        section: Section | None = import_module(f"usp_prof.report.sections.{name}").build(context, title)
        return section
    return plain.build(context, name, title)
