"""Golden reports: facts, figures and findings of a recorded run's report that must not change, one per line.

Integers are stored unchanged, other numbers with nine digits (the tenth may depend on the processor). Figures with more
than one dimension are stored as their count and sum: a change is detected, and a file stays readable.
`tools/make_golden` writes the files again after an intended change.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden"
RUNS = tuple(sorted(folder.name for folder in (ROOT / "traces").glob("recorded-*")))
_DIGITS = 9


def path_of(run: str) -> Path:
    """Return the path of a run's golden report."""
    return FOLDER / f"{run}.json"


def report_of(run: str, cache: Path) -> dict[str, Any]:
    """Analyze a recorded run like `usp-prof analyze --format json`."""
    opened = open_run(ROOT / "traces" / run, cache_dir=cache)
    document = build(opened.tables, analyze(opened.tables), name=opened.name)
    report: dict[str, Any] = json.loads(json_text.write(document))
    return report


def condensed(report: dict[str, Any]) -> str:
    """Format the report as text, one figure per line."""
    condensed_report: dict[str, dict[str, Any] | list[str]] = {
        "run": {name: report["run"][name] for name in ("ranks", "world_size", "axes", "steps", "devices", "hosts")},
        "metrics": dict(_figures(report["metrics"])),
        "findings": {
            f"{n}. {finding['code']}{_at(finding['where'])}": _finding(finding) for n, finding in _numbered(report)
        },
        "health": sorted({f"{row['code']} ({row['severity']})" for row in report["health"]}),
    }
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {_field(value)}" for name, value in condensed_report.items()) + "\n}\n"
    )


def _field(value: dict[str, Any] | list[str]) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items()) + "\n}"


def _numbered(report: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    return enumerate(report["findings"], start=1)


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    return {"gain_fraction": _rounded(finding["gain_fraction"]), "basis": finding["basis"], "edit": finding["edit"]}


def _figures(metrics: Iterable[dict[str, Any]]) -> Iterable[tuple[str, Any]]:
    many: dict[str, list[int | float]] = defaultdict(list)
    for metric in metrics:
        name = f"{metric['id']} [{metric['unit']}]"
        if len(metric["dims"]) > 1:
            many[f"{name} by {', '.join(sorted(metric['dims']))}"].append(metric["value"])
        else:
            yield name + _at(metric["dims"]), _rounded(metric["value"])
    for name, values in sorted(many.items()):
        yield name, {"count": len(values), "sum": _rounded(_sum(values))}


def _sum(values: list[int | float]) -> int | float:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def _at(dims: dict[str, Any]) -> str:
    return f" at {', '.join(f'{name} {value}' for name, value in sorted(dims.items()))}" if dims else ""


def _rounded(value: float) -> int | float:
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
