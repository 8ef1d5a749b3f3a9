"""Collectives that a rank posted, per group: their number within steps, and missing sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, rows_by_code
from usp_prof.tables.communication.parts import Membership, Parts
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.steps import Steps

MARKED = ("profiler_step", "mark", "annotation")
"""Sources of steps marked by the program: all ranks post the same calls in the same step."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Collectives of one rank in one group, without sends and receives."""

    calls: int = -1
    first_sequence: int = -1
    last_sequence: int = -1
    missing_sequences: int = 0


def count_calls(parts: Parts, membership: Membership, steps: Steps) -> list[CallCounts]:
    """Count the collectives of each group of a rank."""
    counts = [CallCounts() for _ in membership.groups]
    if not len(parts):
        return counts
    is_collective = ~np.isin(parts.operation, P2P)
    sequence = parts.arguments["sequence"]
    is_posted = (parts.post >= 0) | (parts.posted_track >= 0)
    in_steps = is_posted & (steps.of_host(parts.posted_at) >= 0)
    group = np.where(is_collective, membership.of_part, -1)
    for number, rows in rows_by_code(group).items():
        if number >= 0:
            counts[number] = _counts(sequence[rows], is_posted[rows], in_steps[rows], is_marked=steps.source in MARKED)
    return counts


def _counts(sequence: Ints, is_posted: Flags, in_steps: Flags, *, is_marked: bool) -> CallCounts:
    calls = int(in_steps.sum()) if is_marked and is_posted.any() else -1
    posted_numbers = distinct(sequence[sequence >= 0])
    if not len(posted_numbers) or (sequence < 0).any():
        return CallCounts(calls)
    first, last = int(posted_numbers[0]), int(posted_numbers[-1])
    return CallCounts(calls, first, last, last - first + 1 - len(posted_numbers))
