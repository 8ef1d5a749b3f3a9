"""One cause, one finding: which findings are the same lost time seen again, which are within the noise, which to show.

Two rules may see one cause: the slow host of rank 2, and that all hosts are slow. Replayed alone, each gains the whole;
replayed together, the second adds next to nothing. A finding is therefore part of an earlier one when it adds less
than half of its own gain to those before it, and both are of the same place:

    finding              alone   with those before it
    slow-host  rank 2    66%    66%
    host-bound           67%    68%      adds 2 of 67: part of slow-host
    slow-link  tp        20%    85%      adds 17 of 20: a cause of its own

Only effects become part of another finding. The cost of the run's configuration (schedule, micro-batches,
recomputation) remains a separate finding, however little it adds once a fault is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.finding import Finding, PlainMap

SHOWN = 5
"""Causes that a screen holds."""
ADDS = 0.5
"""A finding that adds less than this share of its own gain is the same time again."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding, and those that go away with it."""

    finding: Finding
    parts: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes that are worth acting on, most important first, and the findings within the noise."""

    causes: tuple[Cause, ...]
    noise: tuple[Finding, ...]

    @property
    def shown(self) -> tuple[Cause, ...]:
        """Those that a screen holds."""
        return self.causes[:SHOWN]

    @property
    def more(self) -> int:
        """How many causes a screen leaves out."""
        return len(self.causes) - len(self.shown)


def causes_of(findings: Sequence[Finding]) -> Causes:
    """Put findings with what they are part of, and those within the noise aside."""
    parts: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.part_of >= 0:
            parts.setdefault(finding.part_of, []).append(finding)
    causes = [
        Cause(finding, tuple(parts.get(place, ())))
        for place, finding in enumerate(findings)
        if finding.part_of < 0 and not finding.is_noise
    ]
    noise = [finding for finding in findings if finding.part_of < 0 and finding.is_noise]
    return Causes(tuple(causes), tuple(noise))


def with_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return for each finding which earlier one it is part of, by its place in the list."""
    explained_so_far: list[Finding] = []
    for place, finding in enumerate(findings):
        before = findings[place - 1].cumulative_gain_fraction if place else 0.0
        adds = finding.cumulative_gain_fraction - before
        wholes = [
            earlier
            for earlier, candidate in enumerate(explained_so_far)
            if candidate.part_of < 0 and not candidate.is_noise and same_place(candidate.where, finding.where)
        ]
        # Of several, the one that names the same rank or axis; else the most important.
        whole = min(
            wholes, key=lambda earlier: (not _shares_place(explained_so_far[earlier], finding), earlier), default=-1
        )
        is_explained = not finding.is_noise and not finding.is_choice and adds < ADDS * finding.gain_fraction
        explained_so_far.append(replace(finding, part_of=whole) if whole >= 0 and is_explained else finding)
    return explained_so_far


def same_place(one: PlainMap, other: PlainMap) -> bool:
    """Return whether findings in two places may have the same cause: no common coordinate differs."""
    ranks, others = _ranks(one), _ranks(other)
    if ranks and others and not ranks & others:
        return False
    axis, other_axis = one.get("axis"), other.get("axis")
    return axis is None or other_axis is None or axis == other_axis


def _shares_place(one: Finding, other: Finding) -> bool:
    axis = one.where.get("axis")
    return bool(_ranks(one.where) & _ranks(other.where)) or (axis is not None and axis == other.where.get("axis"))


def _ranks(where: PlainMap) -> set[int]:
    """Return the ranks that a place names: one, several, or the members of its group; empty where it is of all."""
    rank, group = where.get("rank"), where.get("group")
    if isinstance(rank, int):
        return {rank}
    if "ranks" in where:
        return _numbers(str(where["ranks"]))
    members = str(group or "").partition("@")[2].split(",")
    return {int(member) for member in members if member.isdigit()}


def _numbers(text: str) -> set[int]:
    """Read numbers as they are written shortly: 0-3, 7."""
    numbers: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        if first.isdigit():
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
