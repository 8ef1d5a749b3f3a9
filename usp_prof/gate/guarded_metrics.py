"""Guarded metrics: what the rules and bounds of a policy name, and the analyses and replays that give them."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

from usp_prof.analyses import NAMES
from usp_prof.findings import slowdown
from usp_prof.gate.series import SHARES
from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from usp_prof.gate.policy import Policy

ALWAYS = ("step_time", "breakdown", "overlap")
"""What tells the noise of the steps, and why a step got longer."""


def analyses_for(policy: Policy) -> tuple[str, ...]:
    """List the analyses, in their order, whose values a check under this policy looks at."""
    patterns = [_pattern(word) for word in _words(policy)]
    return tuple(name for name in NAMES if name in ALWAYS or any(_declares(name, each) for each in patterns))


def known_metrics() -> tuple[str, ...]:
    """Name all metrics that a rule can be about."""
    declared = {name for analysis in NAMES for name in _declared(analysis)}
    return tuple(sorted(declared | {metric.id for metric in slowdown.METRICS}))


def asks_for_slowdown(policy: Policy) -> bool:
    """Say whether a rule or a bound names the job's slowdown, which takes a replay."""
    patterns = [_pattern(word) for word in _words(policy)]
    return any(pattern.fullmatch(metric.id) for metric in slowdown.METRICS for pattern in patterns)


def _words(policy: Policy) -> list[str]:
    return [rule.match for rule in policy.rules] + [name for name, _ in policy.minimum]


def check_names(policy: Policy) -> None:
    """Refuse rules and bounds about metrics that do not exist: a misspelt rule would guard nothing and say nothing."""
    known = known_metrics()
    for word in _words(policy):
        name = word.partition("[")[0]
        if not any(_pattern(name).fullmatch(each) for each in known):
            raise unknown_name("metric", name, known)


def _pattern(word: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, word.partition("[")[0].split("*"))))


def _declares(analysis: str, pattern: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(name) for name in _declared(analysis))


def _declared(analysis: str) -> list[str]:
    declared = [metric.id for metric in import_module(f"usp_prof.analyses.{analysis}").METRICS]
    return [*declared, *(SHARES[metric][0] for metric in declared if metric in SHARES)]
