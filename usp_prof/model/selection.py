"""Selection: the ranks and steps to look at, and facts supplied by the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index

import numpy as np
from numpy.typing import NDArray

from usp_prof import conventions, limits
from usp_prof.contract import ModelEntry
from usp_prof.model.errors import UsageError
from usp_prof.model.memory_snapshot import MemorySnapshot


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranks and steps to look at; `None` selects all. Steps are numbers in the trace, both ends included."""

    ranks: tuple[int, ...] | None = None
    first_step: int | None = None
    last_step: int | None = None

    @property
    def steps_in_words(self) -> str:
        """The selected steps as text: 3, 3-7, 3 or later, up to 7; empty for all."""
        if self.first_step is None:
            return "" if self.last_step is None else f"up to {self.last_step}"
        if self.last_step is None:
            return f"{self.first_step} or later"
        return f"{self.first_step}" if self.first_step == self.last_step else f"{self.first_step}-{self.last_step}"

    def ranks_among(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks that are selected."""
        return [rank for rank in ranks if self.ranks is None or rank in self.ranks]

    def takes_step(self, step: int) -> bool:
        """Return whether a step is selected."""
        after = self.first_step is None or step >= self.first_step
        return after and (self.last_step is None or step <= self.last_step)

    def takes_steps(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each step whether it is selected."""
        inside = np.ones(len(steps), bool)
        if self.first_step is not None:
            inside &= steps >= self.first_step
        if self.last_step is not None:
            inside &= steps <= self.last_step
        return inside


EVERYTHING = Selection()


def numbers(kind: str, chosen: int | Iterable[int]) -> tuple[int, ...]:
    """Return sorted, distinct numbers of ranks or steps (`kind`); a single number is accepted."""
    try:
        return tuple(sorted({index(number) for number in (chosen if isinstance(chosen, Iterable) else [chosen])}))
    except TypeError:
        hint = f"{kind}=3, {kind}=[3, 4] or {kind}=range(3, 8)"
        raise UsageError(f"{kind}={chosen!r} is neither a number nor a list of numbers", hint=hint) from None


def whole_number(name: str, value: int) -> int:
    """Return a count that was passed from Python, such as the tokens per step; 0 means unknown."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= limits.COUNT.high:
        raise UsageError(f"{name}={value!r} is not a whole number above 0", hint=f"for example {name}=4096")
    return number


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Facts supplied by the user; each takes precedence over manifest and trace."""

    model: ModelEntry | None = None
    device: str = ""
    convention: str = conventions.DEFAULT
    tokens_per_step: int = 0
    """Over all ranks; 0: as in the manifest."""
    peak_flops: float = 0.0
    snapshots: tuple[MemorySnapshot, ...] = ()


NOTHING_ASSUMED = Assumptions()
