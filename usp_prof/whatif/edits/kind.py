"""Kinds of edits: name, keys, and the function that applies the edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.printable import first_few
from usp_prof.replay.graph import Graph
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.layout import Layout


class Lean(StrEnum):
    """Mode of a model: its expected figures, or cautious ones that are less favorable by the model's error."""

    EXPECTED = "expected"
    CAUTIOUS = "cautious"


@dataclass(frozen=True, slots=True)
class Request:
    """One edit of one run. `layout` is the job's layout before this edit, including earlier edits."""

    edit: Edit
    tables: TableSet
    layout: Layout
    lean: Lean = Lean.EXPECTED

    @property
    def cautious(self) -> bool:
        """Whether models use cautious figures."""
        return self.lean is Lean.CAUTIOUS

    def positive(self) -> float:
        """Return the value as a factor above 0."""
        factor = self.edit.number()
        if not factor > 0 or factor == float("inf"):
            raise UsageError(f"edit {self.edit}: the factor must be more than 0", hint="2 means twice as fast")
        return factor

    def integer(self, key: str = "", default: int | None = None) -> int:
        """Return the value, or that of a key, as an integer of at least 1."""
        number = self.edit.number(key, default=None if default is None else float(default))
        if number < 1 or number != int(number):
            label = key or self.edit.name
            raise UsageError(f"edit {self.edit}: {label} must be a whole number of at least 1", hint=f"as in {label}=4")
        return int(number)

    def ranks(self) -> list[int]:
        """Return the value as ranks of the run, such as 3 or 2+3."""
        return self._existing([int(Edit(self.edit.name, word).number()) for word in self.edit.value.split("+")])

    def ranks_of_key(self) -> list[int]:
        """Return the rank that the key `rank` names, or all ranks without it."""
        return self._existing([int(self.edit.number("rank"))]) if self.edit.place("rank") else list(self.tables.ranks)

    def _existing(self, ranks: list[int]) -> list[int]:
        if unknown := [rank for rank in ranks if rank not in self.tables.ranks]:
            hint = f"its ranks are {first_few(self.tables.ranks, 16)}"
            raise UsageError(f"edit {self.edit}: this run has no rank {unknown[0]}", hint=hint)
        return ranks


def no_peers(rank: int, with_peers: Iterable[int]) -> UsageError:
    """Return the error for a rank that cannot perform like its peers, with the ranks that can."""
    ranks = sorted(with_peers)
    hint = f"one of {ranks}" if ranks else "no rank of this run has: peers do the same work"
    return UsageError(f"rank {rank} has no peers", hint=hint)


def unchanged(layout: Layout, edit: Edit) -> Layout:  # noqa: ARG001 - common signature
    """Return the layout unchanged."""
    return layout


WHERE = ("axis", "op")
"""Keys that select calls; without them, an edit applies to all calls."""
MODEL_DOUBT = 0.1
"""Minimum error of a modeled change, as the share of it that may not materialize."""


class Again(StrEnum):
    """Effect of an edit if another edit of its kind was applied before."""

    NOTHING = "nothing"
    """An equal edit has no effect; a different one, such as for another rank, is added."""
    REPLACES = "replaces"
    """It replaces the earlier one on the same axis and operation, or on all: ZeRO has only one stage."""
    MULTIPLIES = "multiplies"
    """The factors multiply: 2x faster twice is 4x faster."""


@dataclass(frozen=True, slots=True)
class EditKind:
    """One kind of edit: name, example for the help, keys, and how it is applied.

    Kinds marked as modeled need figures that no trace has. They are applied twice, with expected and with cautious
    figures, and the difference is their error.
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
    """Edits with a lower turn are applied first: latency edits (1) need the recorded times, and inserted calls (2) take
    the times of the run's own calls after the other edits."""

    def overrules(self, edit: Edit, before: Edit) -> bool:
        """Return whether an edit of this kind replaces an earlier one."""
        if before.name != edit.name or self.again is Again.MULTIPLIES:
            return False
        if self.again is Again.NOTHING:
            return before == edit
        if all(edit.place(key) in ("", before.place(key)) for key in WHERE):  # it covers all calls of the earlier edit
            return True
        if all(edit.place(key) == before.place(key) or not before.place(key) for key in WHERE):
            hint = "name each axis or operation once"
            raise UsageError(f"edit {edit}: {before} already sets it for all of these", hint=hint)
        return False

    @property
    def doc(self) -> str:
        """Description of the edit in a sentence or two."""
        return " ".join((self.apply.__doc__ or "").split())

    def check(self, edit: Edit) -> None:
        """Raise for keys that it does not take."""
        for key, _ in edit.places:
            if key not in self.keys:
                if not self.keys:
                    raise UsageError(f"edit {edit}: {self.name} takes no keys", hint=f"write it like {self.example}")
                raise unknown_name(f"key of {self.name}", key, self.keys)
