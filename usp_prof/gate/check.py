"""How is a run checked from the outside? What the command, the pytest plugin and a script call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.findings import find
from usp_prof.gate import baseline as baselines
from usp_prof.gate import write_annotations, write_json, write_junit, write_markdown, write_terminal
from usp_prof.gate.measure import measure
from usp_prof.gate.policy import Policy, load_policy
from usp_prof.gate.verdict import Inconclusive, Report, check
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.gate.measured import Measured
    from usp_prof.run import Run

__all__ = ["Path", "check_measured", "check_run", "measured", "render", "text"]

FORMATS = ("terminal", "json", "markdown", "junit", "github")


def measured(run: Run, label: str = "") -> Measured:
    """Measure an opened run."""
    return measure(run.tables, label or run.name, findings=find(run.tables))


def check_run(
    run: Run,
    *,
    baseline: str,
    policy: str = "",
    minimum: Mapping[str, float],
    max_regression: Mapping[str, str],
    inconclusive: str = "default",
) -> Report:
    """Check a run against a baseline file, under a policy file and the words that override it."""
    return check_measured(
        measured(run),
        baseline=baseline,
        policy=policy,
        minimum=minimum,
        max_regression=max_regression,
        inconclusive=inconclusive,
    )


def check_measured(
    after: Measured,
    *,
    baseline: str,
    policy: str = "",
    minimum: Mapping[str, float],
    max_regression: Mapping[str, str],
    inconclusive: str = "default",
) -> Report:
    """Check what was measured of a run already."""
    rules = (load_policy(policy) if policy else Policy()).with_options(minimum=minimum, max_regression=max_regression)
    if not baseline and not rules.minimum:
        raise UsageError("nothing to check against", hint="give --baseline FILE, or a bound such as --min mfu=0.38")
    return check(baselines.load(baseline) if baseline else None, after, rules, Inconclusive(inconclusive))


def text(report: Report) -> str:
    """Write a report as plain text."""
    return write_terminal.render(report, color=False)


def render(report: Report, form: str, *, color: bool = False) -> str:
    """Write a report in one of `FORMATS`."""
    if form == "terminal":
        return write_terminal.render(report, color=color)
    writers = {
        "json": write_json.render,
        "markdown": write_markdown.render,
        "junit": write_junit.render,
        "github": write_annotations.render,
    }
    return writers[form](report)
