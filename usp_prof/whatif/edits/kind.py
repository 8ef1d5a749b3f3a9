"""Kinds of edits: a name with its keys, and the function that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.layout import Layout


class Lean(StrEnum):
    """How a model's figures are to be taken: as it expects them, or against the change by what it may be wrong."""

    EXPECTED = "expected"
    CAUTIOUS = "cautious"


@dataclass(frozen=True, slots=True)
class Request:
    """One edit of one run. `layout` is the job's layout before it; edits made earlier are in it."""

    edit: Edit
    tables: TableSet
    layout: Layout
    lean: Lean = Lean.EXPECTED

    @property
    def cautious(self) -> bool:
        """Whether models are to be taken against the change."""
        return self.lean is Lean.CAUTIOUS

    def positive(self) -> float:
        """Give the value as a factor above 0."""
        factor = self.edit.number()
        if not factor > 0 or factor == float("inf"):
            raise UsageError(f"edit {self.edit}: the factor must be more than 0", hint="2 means twice as fast")
        return factor

    def whole(self, key: str = "", default: int | None = None) -> int:
        """Give the value, or that of a key, as a whole number of at least 1."""
        number = self.edit.number(key, default=None if default is None else float(default))
        if number < 1 or number != int(number):
            what = key or self.edit.name
            raise UsageError(f"edit {self.edit}: {what} must be a whole number of at least 1", hint=f"as in {what}=4")
        return int(number)


def unchanged(layout: Layout, edit: Edit) -> Layout:  # noqa: ARG001 - all are called alike
    """Leave the layout as it is."""
    return layout


WHERE = ("axis", "op")
"""Keys that say of which calls an edit is made; without one, of all."""
MODEL_DOUBT = 0.1
"""Of a modelled change, the share that may not come about whatever the model says."""


class Again(StrEnum):
    """What an edit does where one of its kind has been made before."""

    NOTHING = "nothing"
    """The same one nothing; another, such as of another rank, its own change beside it."""
    REPLACES = "replaces"
    """It takes the place of the one before, on the same axis and operation or on all: ZeRO has one stage."""
    MULTIPLIES = "multiplies"
    """Twice as fast, and twice as fast again."""


@dataclass(frozen=True, slots=True)
class EditKind:
    """One kind of edit: an example for the help, the keys that it takes, and how it is made.

    `modelled` ones fill in what no trace holds: they are made twice, as expected and cautiously, and the difference is
    their error.
    """

    name: str
    example: str
    keys: tuple[str, ...]
    apply: Callable[[Graph, Request], Graph]
    relayout: Callable[[Layout, Edit], Layout] = unchanged
    modelled: bool = False
    doubt: float = MODEL_DOUBT
    again: Again = Again.NOTHING
    turn: int = 0
    """Edits of a lower turn are made first, in whatever order they are given: latencies (1) are told from bytes as they
    were recorded, and calls that are put in (2) take what the run's own take by then."""

    def overrules(self, edit: Edit, before: Edit) -> bool:
        """Say whether an edit of this kind stands in place of one that was made before it."""
        if before.name != edit.name or self.again is Again.MULTIPLIES:
            return False
        if self.again is Again.NOTHING:
            return before == edit
        if all(edit.place(key) in ("", before.place(key)) for key in WHERE):  # it is made of all that the first was
            return True
        if all(edit.place(key) == before.place(key) or not before.place(key) for key in WHERE):
            hint = "name each axis or operation once"
            raise UsageError(f"edit {edit}: {before} has set it for more than this already", hint=hint)
        return False

    @property
    def doc(self) -> str:
        """What it does, in a sentence or two."""
        return " ".join((self.apply.__doc__ or "").split())

    def check(self, edit: Edit) -> None:
        """Refuse keys that it does not take."""
        for key, _ in edit.places:
            if key not in self.keys:
                if not self.keys:
                    raise UsageError(f"edit {edit}: {self.name} takes no keys", hint=f"write it like {self.example}")
                raise unknown_name(f"key of {self.name}", key, self.keys)
