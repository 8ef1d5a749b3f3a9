"""Rules and drafts: what a rule offers, what it says before its gain is known, and all rules by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from usp_prof.findings.rules import NAMES
from usp_prof.model.errors import unknown_name
from usp_prof.model.finding import EMPTY, Basis, PlainMap

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Draft:
    """A pattern that was found. `least_gain` is the predicted gain below which it is not worth a word."""

    title: str
    where: PlainMap
    evidence: PlainMap
    edit: Edit
    advice: str
    least_gain: float = 0.02
    opportunity: bool = False
    """A choice that could be made otherwise, rather than something that is wrong."""
    is_choice: bool = False
    """A choice that is a poor one; every opportunity is a choice, too."""
    covers: tuple[str, ...] = ()
    """Codes of narrower findings whose cost this change would take away as well: it comes by what it adds to them."""
    basis: Basis | None = None
    settings: PlainMap = field(default_factory=lambda: EMPTY)
    rows: str = ""
    """A SELECT whose rows prove it, see `proof`."""


class Rule(Protocol):
    """What a rule offers, a class of ours or a module of somebody else's; its docstring is its page.

    It may also have `NEEDS`, a tuple of `Input`: the rule is skipped, with the reason, where one of them is damaged.
    """

    CODE: str
    TITLE: str
    __doc__: str | None

    def look(self, tables: TableSet) -> Iterable[Draft]:
        """Look for the pattern."""
        ...


GROUP = "usp_prof.rules"
"""Entry points of this group are rules of one's own: modules with `CODE`, `TITLE`, a docstring and `look`."""


def all_rules() -> tuple[Rule, ...]:
    """Give all rules: ours in the order of their list, then those of others by name."""
    return (*(_ours(name) for name in NAMES), *(point.load() for point in others()))


def _ours(name: str) -> Rule:
    module, _, rule_class = name.partition(".")
    ours: Rule = getattr(import_module(f"usp_prof.findings.rules.{module}"), rule_class)
    return ours


def others() -> list[EntryPoint]:
    """List the rules of others, by name, none of them loaded."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def rule(code: str) -> Rule:
    """Give one rule by its code."""
    known = {each.CODE: each for each in all_rules()}
    if code not in known:
        raise unknown_name("finding", code, known)
    return known[code]
