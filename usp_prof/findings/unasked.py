"""Which rules could not look, and what did they miss? A row of health for each reason, and all in a sentence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from usp_prof.model.health import HealthRow, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CODE = "rules_skipped"
_HEAD = re.compile(r"[^:;(]*")


def rows(reasons: Mapping[str, str]) -> list[HealthRow]:
    """Say which rules could not look, given each one's reason."""
    alike: dict[str, list[str]] = {}
    for rule, reason in reasons.items():
        alike.setdefault(reason, []).append(rule)
    return [
        HealthRow(CODE, Severity.INFO, count=len(rules), detail=f"{reason}; not asked: {', '.join(rules)}")
        for reason, rules in alike.items()
    ]


def sentence(health: Iterable[HealthRow]) -> str:
    """Say in a line how many rules could not look, and why; empty where all could."""
    found = sorted((row for row in health if row.code == CODE), key=lambda row: -row.count)
    why = [f"{row.count} ({_HEAD.match(row.detail)[0].strip()})" for row in found]  # type: ignore[index]
    return f"rules that could not look: {', '.join(why)}" if why else ""
