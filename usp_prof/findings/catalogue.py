"""Which rules are there? Ours, and those that somebody else's packages bring."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from usp_prof.findings.rules import NAMES
from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from usp_prof.findings.draft import Rule

GROUP = "usp_prof.rules"
"""Entry points of this group are rules of one's own: modules with `CODE`, `TITLE`, a docstring and `look`."""


def all_rules() -> tuple[Rule, ...]:
    """Give all rules: ours in the order of their list, then those of others by name."""
    ours = [import_module(f"usp_prof.findings.rules.{name}") for name in NAMES]
    return (*ours, *(point.load() for point in others()))


def others() -> list[EntryPoint]:
    """List the rules of others, by name, none of them loaded."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def rule(code: str) -> Rule:
    """Give one rule by its code."""
    known = {each.CODE: each for each in all_rules()}
    if code not in known:
        raise unknown_name("finding", code, known)
    return known[code]
