"""What does a rule say before its gain is known? The pattern, its place, the numbers, and the edit that mends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from usp_prof.model.finding import EMPTY, Basis, PlainMap

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """What a rule's module offers; its docstring is its page.

    It may also have `NEEDS`, a tuple of `Input`: the rule is skipped, with the reason, where one of them is damaged.
    """

    CODE: str
    TITLE: str
    __doc__: str | None

    def look(self, tables: TableSet) -> Iterable[Draft]:
        """Look for the pattern."""
        ...
