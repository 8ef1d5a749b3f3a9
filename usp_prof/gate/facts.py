"""Under what conditions was a run made, and what can therefore be compared with another?

A fact belongs to a kind, and a difference of a kind bars what it makes meaningless: on other hardware times say
nothing, for other work counts and times say nothing, and software may differ, since that is what a gate is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.gate.series import EXACT
from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MEASURED_PEAK = "measured peak"
SAME_PEAK = 1.25
"""Where a machine's name is not known, its largest matrix product tells it; measured again it differs by less."""


class FactKind(StrEnum):
    """What a fact is about, in the order in which differences are told."""

    HARDWARE = "hardware"
    WORK = "work"
    LAYOUT = "layout"
    SOFTWARE = "software"


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """One condition of a run: `hardware.device = NVIDIA H100`."""

    kind: FactKind
    name: str
    value: str


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A fact that differs between baseline and candidate; an empty side did not say."""

    kind: FactKind
    name: str
    before: str
    after: str

    @property
    def known(self) -> bool:
        """Both sides said what they are."""
        return bool(self.before) and bool(self.after)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.before or 'not recorded'} -> {self.after or 'not recorded'}"


def differences(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Difference, ...]:
    """List the facts that differ, hardware first."""
    old: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in before}
    new: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in after}
    order = list(FactKind)
    keys = sorted(old.keys() | new.keys(), key=lambda key: (order.index(key[0]), key[1]))
    found = (Difference(kind, name, old.get((kind, name), ""), new.get((kind, name), "")) for kind, name in keys)
    return tuple(each for each in found if each.before != each.after and not _as_measured(each))


def _as_measured(found: Difference) -> bool:
    """Say whether two figures are the same but for how they were measured."""
    if found.name != MEASURED_PEAK or not found.known:
        return False
    before, after = float(found.before), float(found.after)
    return max(before, after) <= SAME_PEAK * min(before, after)


_RATES = (Unit.NS, Unit.PER_SECOND, Unit.BYTES_PER_SECOND, Unit.FLOP_PER_SECOND, Unit.FRACTION, Unit.RATIO)
_AMOUNTS = (Unit.NS, Unit.BYTES, Unit.FLOP, Unit.COUNT)


def barred(unit: Unit, found: Iterable[Difference], across: Iterable[FactKind] = ()) -> Difference | None:
    """Give the difference that bars figures of this unit, if any; kinds in `across` are compared all the same."""
    passed = set(across)
    for difference in found:
        if not difference.known or difference.kind in passed:
            continue
        if difference.kind is FactKind.HARDWARE and unit in _RATES:
            return difference
        if difference.kind is FactKind.WORK and unit in _AMOUNTS:
            return difference
        if difference.kind is FactKind.LAYOUT and unit in EXACT:
            return difference
    return None
