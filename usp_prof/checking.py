"""Check of a run against a baseline: the entry point of the command, the pytest plugin and scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from usp_prof.analyses import NAMES
from usp_prof.findings import find
from usp_prof.findings.engine import found_in
from usp_prof.gate import measured as baselines
from usp_prof.gate.judgment import Verdict
from usp_prof.gate.measured import Baseline, Measured, measure, seen_findings
from usp_prof.gate.policy import Judge, Policy, load_policy, pattern_of
from usp_prof.gate.series import SHARES
from usp_prof.gate.verdict import Inconclusive, Report, check
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.finding import JOB_SLOWDOWN
from usp_prof.report.answers.check import as_annotations, as_json, as_junit, as_markdown, as_terminal

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet


class Opened(Protocol):
    """The part of a run that a check needs: its name and its tables."""

    name: str

    @property
    def tables(self) -> TableSet:
        """The tables of all ranks."""
        ...


FORMATS = ("terminal", "json", "markdown", "junit", "github")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a check: a baseline and its file, the policy, and what an inconclusive check does."""

    baseline: Baseline | None
    policy: Policy
    inconclusive: Inconclusive = Inconclusive.DEFAULT
    file: str = ""


def read_terms(
    baseline: str = "",
    policy: str = "",
    minimum: Mapping[str, float] = MappingProxyType({}),
    max_regression: Mapping[str, str] = MappingProxyType({}),
    *,
    inconclusive: str = Inconclusive.DEFAULT,
    judge: str = "",
) -> Terms:
    """Read the files of a check; options override the policy file.

    Raise UsageError if there is neither a baseline nor a bound.
    """
    rules = load_policy(policy) if policy else Policy()
    rules = rules.with_options(minimum=minimum, max_regression=max_regression)
    if judge:
        rules = rules.judging(Judge(judge))
    check_names(rules)
    if not baseline and not rules.minimum:
        hint = "pass --baseline FILE, or a lower bound such as --min mfu=0.38"
        raise UsageError("nothing to check against", hint=hint)
    return Terms(baselines.load(baseline) if baseline else None, rules, Inconclusive(inconclusive), baseline)


def measured(run: Opened, label: str = "") -> Measured:
    """Measure everything of an opened run."""
    outcome = found_in(run.tables)
    return measure(run.tables, label or run.name, findings=outcome.findings, ideal=outcome.ideal)


def check_run(run: Opened, terms: Terms, label: str = "") -> Report:
    """Check a run; measure only what the policy needs and what explains a regression."""
    ideal = found_in(run.tables).ideal if asks_for_slowdown(terms.policy) else None
    after = measure(run.tables, label or run.name, analyses=analyses_for(terms.policy), ideal=ideal)
    if terms.baseline is None:
        return check_measured(after, terms)
    if terms.policy.findings is None:
        report = check_measured(after, terms)
        if report.verdict is not Verdict.REGRESSED:
            return report  # findings are neither checked nor needed for an explanation
    return check_measured(replace(after, findings=seen_findings(find(run.tables))), terms)


def check_measured(after: Measured, terms: Terms) -> Report:
    """Check a run that was already measured."""
    return replace(check(terms.baseline, after, terms.policy, terms.inconclusive), baseline_file=terms.file)


def text(report: Report) -> str:
    """Return a report as plain text."""
    return as_terminal(report, color=False)


def render(report: Report, form: str, *, color: bool = False, width: int = 120, is_screen: bool = False) -> str:
    """Return a report in one of `FORMATS`; on a screen its sentences are wrapped."""
    if form == "terminal":
        return as_terminal(report, color=color, width=width, is_screen=is_screen)
    writers = {
        "json": as_json,
        "markdown": as_markdown,
        "junit": as_junit,
        "github": as_annotations,
    }
    return writers[form](report)


# Guarded metrics: those named by the rules and bounds of a policy, and the analyses and replays that compute them.

ALWAYS = ("step_time", "breakdown", "overlap")
"""Analyses for the noise of the steps, and for the explanation of a longer step."""


def analyses_for(policy: Policy) -> tuple[str, ...]:
    """Return the analyses that a check under this policy needs, in their usual order."""
    patterns = [_pattern(word) for word in _words(policy)]
    return tuple(name for name in NAMES if name in ALWAYS or any(_declares(name, pattern) for pattern in patterns))


def asks_for_slowdown(policy: Policy) -> bool:
    """Return whether a rule or a bound names the job slowdown, which requires a replay."""
    patterns = [_pattern(word) for word in _words(policy)]
    return any(pattern.fullmatch(JOB_SLOWDOWN.id) for pattern in patterns)


def _words(policy: Policy) -> list[str]:
    return [rule.match for rule in policy.rules] + [name for name, _ in policy.minimum]


def check_names(policy: Policy) -> None:
    """Raise if a rule or bound names an unknown metric: a misspelled rule would silently check nothing."""
    metric_names = {name for analysis in NAMES for name in _declared(analysis)} | {JOB_SLOWDOWN.id}
    for word in _words(policy):
        name = word.partition("[")[0]
        if not any(_pattern(name).fullmatch(metric) for metric in metric_names):
            raise unknown_name("metric", name, metric_names, list_command="usp-prof explain")


def _pattern(word: str) -> re.Pattern[str]:
    return pattern_of(word.partition("[")[0], ".")


def _declares(analysis: str, pattern: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(name) for name in _declared(analysis))


def _declared(analysis: str) -> list[str]:
    declared = [metric.id for metric in import_module(f"usp_prof.analyses.{analysis}").METRICS]
    return [*declared, *(SHARES[metric][0] for metric in declared if metric in SHARES)]
