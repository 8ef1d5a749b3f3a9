"""A run's report for comparison in trials: read, analyzed and written by the library, with sorted figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text, markdown
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def report_of(run: Path, cache: Path) -> dict[str, Any]:
    """Read, analyze and write a run; return the report as JSON."""
    opened = open_run(run, cache_dir=cache)
    document = build(opened.tables, analyze(opened.tables), name="run")
    markdown.write(document)
    report: dict[str, Any] = json.loads(json_text.write(document))
    return report


def values_of(report: dict[str, Any]) -> list[str]:
    """Return the figures of a report in a fixed order."""
    return sorted(json.dumps(value, sort_keys=True) for value in report["metrics"])
