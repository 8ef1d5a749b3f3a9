"""All rules: built-in ones and those of other packages."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from usp_prof.findings.draft import Rule
from usp_prof.findings.rules import NAMES
from usp_prof.model.errors import unknown_name

GROUP = "usp_prof.rules"
"""Entry point group of third-party rules: modules with `CODE`, `TITLE`, a docstring and `look`."""


def all_rules() -> tuple[Rule, ...]:
    """Return all rules: built-in ones in the order of their list, then third-party ones by name."""
    return (*(_built_in(name) for name in NAMES), *(point.load() for point in third_party_rules()))


def _built_in(name: str) -> Rule:
    module, _, rule_class = name.partition(".")
    rule: Rule = getattr(import_module(f"usp_prof.findings.rules.{module}"), rule_class)
    return rule


def third_party_rules() -> list[EntryPoint]:
    """Return the entry points of third-party rules, sorted by name, without loading them."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def rule(code: str) -> Rule:
    """Return one rule by its code."""
    rule_of_code = {candidate.CODE: candidate for candidate in all_rules()}
    if code not in rule_of_code:
        raise unknown_name("finding", code, rule_of_code)
    return rule_of_code[code]
