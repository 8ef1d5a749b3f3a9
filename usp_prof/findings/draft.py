"""Rules and drafts: a rule's results and required inputs, and its finding before the gain is known.

A rule whose input is damaged or missing is skipped, and a health row gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from usp_prof.model.edit import Edit
from usp_prof.model.finding import EMPTY, Basis, PlainMap
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import counted
from usp_prof.replay.representatives import REPRESENTED
from usp_prof.tables import clock
from usp_prof.tables.completeness.losses import LOST_WORK, code_and_rank, losses
from usp_prof.tables.table_set import TableSet

LEAST_GAIN = 0.02
"""Gain, as a fraction of the step, below which most findings are not reported."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A detected pattern. `least_gain` is the predicted gain below which it is not reported."""

    title: str
    where: PlainMap
    evidence: PlainMap
    edit: Edit
    advice: str
    least_gain: float = LEAST_GAIN
    opportunity: bool = False
    """Whether this is a configuration choice with an alternative, rather than a problem."""
    is_choice: bool = False
    """Whether this is a poor configuration choice; every opportunity is also a choice."""
    covers: tuple[str, ...] = ()
    """Codes of narrower findings whose cost this change also removes; it is ranked by what it adds to them."""
    basis: Basis | None = None
    settings: PlainMap = field(default_factory=lambda: EMPTY)
    rows: str = ""
    """SELECT whose rows prove the finding; see `proof`."""
    spent: Mapping[int, float] = field(default_factory=dict)
    """Time that each rank spends, if the time of one rank may cost as much as that of all; see `place.of_ranks`."""
    of_time: Callable[[Mapping[int, float], Edit], Draft] | None = None
    """Returns the draft for other times that ranks spend, and the edit that removes them."""


class Rule(Protocol):
    """Interface of a rule, which is a built-in class or a third-party module; its docstring is its help page.

    A rule may also have `NEEDS`, a tuple of `Input`. It is skipped, with the reason, if any of them is damaged.
    """

    CODE: str
    TITLE: str
    __doc__: str | None

    def look(self, tables: TableSet) -> Iterable[Draft]:
        """Yield a draft for each occurrence of the pattern."""
        ...


UNLINKED = 0.1
"""Launches are not analyzed if more than this share of device work has no known launch."""


class Input(StrEnum):
    """Required input of a rule."""

    ALL_RANKS = "complete traces of all ranks"
    ONE_CLOCK = "one clock for all ranks"
    LAUNCHES = "launches of device work"
    SHAPES = "shapes of ops"
    MEMORY = "allocator events"


DAMAGES: tuple[str, ...] = (
    "truncated", "broken_events", "broken_fields", "corrupt_packing", "no_events", "rank_unreadable", "missing_ranks",
    "ranks_left_out", "lost_device_work", "device_ends_early", "calls_missing", "sequence_gaps", "identical_ranks",
    "steps_missing",
)  # fmt: skip
"""Health codes for missing events or ranks, with which a rank seems to do less work or has no peers."""


NEEDS = "needs "
"""Start of the reason for a skipped rule."""


def damage(tables: TableSet, wanted: Iterable[Input]) -> str:
    """Return a description of the first damaged or missing input, or an empty string."""
    for needed in wanted:
        if fault := _CHECKS[needed](tables):
            return f"{NEEDS}{needed} ({fault})"
    return ""


def _lost(tables: TableSet) -> str:
    rows = [row for row in tables.health if row.code in DAMAGES and row.severity is not Severity.INFO]
    return code_and_rank(rows[0]) if rows else ""


def _untied(tables: TableSet) -> str:
    n_components = len(np.unique(clock.fit_clocks(tables).component))
    return f"no collective connects the clocks of {n_components} sets of ranks" if n_components > 1 else ""


def _unlinked(tables: TableSet) -> str:
    if rows := [*losses(tables, *LOST_WORK), *(row for row in tables.health if row.code == "steps_by_host")]:
        return code_and_rank(rows[0])
    kernels_of_ranks = [tables.columns("kernels", rank) for rank in tables.ranks]
    n_kernels = sum(len(of_rank) for of_rank in kernels_of_ranks)
    unlinked = sum(
        int(((of_rank["launch_event"] < 0) & ~of_rank["before_window"]).sum()) for of_rank in kernels_of_ranks
    )
    return f"{unlinked} of {n_kernels} have no launch in the trace" if unlinked > UNLINKED * n_kernels > 0 else ""


def _shapeless(tables: TableSet) -> str:
    for rank in tables.ranks:
        ops = tables.columns("ops", rank)
        if len(ops) and not any(text not in ("", "[]") for text in ops.codes("input_dims")[1]):
            return "none were recorded; record with record_shapes=True"
    return ""


def _memoryless(tables: TableSet) -> str:
    has_events = any(len(tables.columns("memory", rank)) for rank in tables.ranks)
    return "" if has_events else "none were recorded; record with profile_memory=True"


_CHECKS: dict[Input, Callable[[TableSet], str]] = {
    Input.ALL_RANKS: _lost,
    Input.ONE_CLOCK: _untied,
    Input.LAUNCHES: _unlinked,
    Input.SHAPES: _shapeless,
    Input.MEMORY: _memoryless,
}


# Skipped rules: one health row per reason, and a summary sentence.

SKIPPED = "rules_skipped"
_CAUSE = re.compile(r"[^:;(]*")


def skipped_rules(reasons: Mapping[str, str]) -> list[HealthRow]:
    """Return health rows on skipped rules, given the reason of each rule."""
    rules_by_reason: dict[str, list[str]] = {}
    for rule, reason in reasons.items():
        rules_by_reason.setdefault(reason, []).append(rule)
    return [
        HealthRow(SKIPPED, Severity.INFO, count=len(rules), detail=f"{reason}; rules skipped: {', '.join(rules)}")
        for reason, rules in rules_by_reason.items()
    ]


def skipped_sentence(health: Iterable[HealthRow]) -> str:
    """Return how many rules were skipped and why, and which ranks the findings cover if not all."""
    rows = tuple(health)
    skipped = sorted((row for row in rows if row.code == SKIPPED), key=lambda row: -row.count)
    sentences = [f"{counted(row.count, 'rule')} skipped{_because(_cause(row))}" for row in skipped]
    sentences += [_cause(row) for row in rows if row.code == REPRESENTED]
    return "; ".join(sentences)


def _because(reason: str) -> str:
    """Return the end of a sentence on skipped rules: what they lack, or why their change cannot be made."""
    return f" for lack of {reason.removeprefix(NEEDS)}" if reason.startswith(NEEDS) else f" because {reason}"


def _cause(row: HealthRow) -> str:
    """Return the first clause of a row's detail."""
    return _CAUSE.match(row.detail)[0].strip()  # type: ignore[index]
