"""Which analyses does a policy need? Those that declare a metric that a rule or a bound is about, and the breakdown."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

from usp_prof.analyses import NAMES
from usp_prof.gate.derived import SHARES

if TYPE_CHECKING:
    from usp_prof.gate.policy import Policy

ALWAYS = ("step_time", "breakdown")
"""What tells the noise of the steps, and why a step got longer."""


def analyses_for(policy: Policy) -> tuple[str, ...]:
    """List the analyses, in their order, whose values a check under this policy looks at."""
    wanted = [rule.match for rule in policy.rules] + [name for name, _ in policy.minimum]
    patterns = [re.compile(".*".join(map(re.escape, word.partition("[")[0].split("*")))) for word in wanted]
    return tuple(name for name in NAMES if name in ALWAYS or any(_declares(name, each) for each in patterns))


def _declares(analysis: str, pattern: re.Pattern[str]) -> bool:
    declared = [metric.id for metric in import_module(f"usp_prof.analyses.{analysis}").METRICS]
    names = [*declared, *(SHARES[metric][0] for metric in declared if metric in SHARES)]
    return any(pattern.fullmatch(name) for name in names)
