"""Root causes: findings grouped by cause, findings within the noise, and the selection to show.

Two rules may detect the same cause, for example a slow host of rank 2 and slow hosts in general. Replayed alone, each
has the full gain; replayed together, the second adds almost nothing. A finding is therefore part of an earlier one if
it adds less than half of its own gain to the findings before it, and both have the same location:

    finding              alone   with those before it
    slow-host  rank 2    66%    66%
    host-bound           67%    68%      adds 2 of 67: part of slow-host
    slow-link  tp        20%    85%      adds 17 of 20: a separate cause

Only effects become part of another finding. The cost of the run's configuration (schedule, micro-batches,
recomputation) remains a separate finding, however little it adds once a fault is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from usp_prof.model.finding import Finding, PlainMap
from usp_prof.model.printable import numbers_of_spans

SHOWN = 5
"""Maximum number of causes to show."""
ADDS = 0.5
"""A finding that adds less than this share of its own gain has the same cause as an earlier one."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding, and the findings that disappear with it."""

    finding: Finding
    parts: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes to act on, most important first, and the findings within the noise."""

    causes: tuple[Cause, ...]
    noise: tuple[Finding, ...]

    @property
    def shown(self) -> tuple[Cause, ...]:
        """The causes to show."""
        return self.causes[:SHOWN]

    @property
    def more(self) -> int:
        """Number of causes that are not shown."""
        return len(self.causes) - len(self.shown)


def causes_of(findings: Sequence[Finding]) -> Causes:
    """Return findings grouped by cause, and separately those within the noise."""
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


def with_causes(findings: Sequence[Finding], covers: Mapping[str, Sequence[str]] | None = None) -> list[Finding]:
    """Return the findings with `part_of` set to the index of the earlier finding with the same cause.

    `covers` has the codes of narrower findings that each code includes, which come before other possible causes.
    """
    explained_so_far: list[Finding] = []
    for place, finding in enumerate(findings):
        before = findings[place - 1].cumulative_gain_fraction if place else 0.0
        adds = finding.cumulative_gain_fraction - before
        candidates = [
            earlier
            for earlier, candidate in enumerate(explained_so_far)
            if candidate.part_of < 0 and not candidate.is_noise and same_place(candidate.where, finding.where)
        ]
        # If there are several, use the one with the same rank or axis, then one that this finding covers, then the most
        # important one.
        covered = (covers or {}).get(finding.code, ())
        cause = min(
            candidates,
            key=lambda earlier: (
                not _shares_place(explained_so_far[earlier], finding),
                explained_so_far[earlier].code not in covered,
                earlier,
            ),
            default=-1,
        )
        is_explained = not finding.is_noise and not finding.is_choice and adds < ADDS * finding.gain_fraction
        explained_so_far.append(replace(finding, part_of=cause) if cause >= 0 and is_explained else finding)
    return explained_so_far


def same_place(where: PlainMap, other: PlainMap) -> bool:
    """Return whether findings at two locations may have the same cause: no common coordinate differs."""
    ranks, other_ranks = _ranks(where), _ranks(other)
    if ranks and other_ranks and not ranks & other_ranks:
        return False
    axis, other_axis = where.get("axis"), other.get("axis")
    return axis is None or other_axis is None or axis == other_axis


def _shares_place(finding: Finding, other: Finding) -> bool:
    axis = finding.where.get("axis")
    return bool(_ranks(finding.where) & _ranks(other.where)) or (axis is not None and axis == other.where.get("axis"))


def _ranks(where: PlainMap) -> set[int]:
    """Return the ranks of a location: one, several, or the members of its group; empty if it covers all ranks."""
    rank, group = where.get("rank"), where.get("group")
    if isinstance(rank, int):
        return {rank}
    if "ranks" in where:
        return numbers_of_spans(str(where["ranks"]))
    members = str(group or "").partition("@")[2].split(",")
    return {int(member) for member in members if member.isdigit()}
