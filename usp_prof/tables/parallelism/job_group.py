"""Job group: the group of the whole job, where it is the only one that communication without a group can belong to.

Kernels of old traces, and of libraries beside NCCL, name no group. They belong to the whole job where
  - every group that the traces name spans the job, or
  - the job has two ranks, of which one was read, or
  - all ranks were read, ran the same operations in order, and ended each of them together: members of a collective
    leave it within microseconds, while two groups of half the job that do the same work drift apart.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.model.topology import Group, group_key
from usp_prof.tables.communication.posts import P2P

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns

    Ints = NDArray[np.int64]

_TOGETHER_NS = 100_000
"""Median distance of the ends of one collective's members; 1 to 63 us were measured on five recorded jobs."""
_TOGETHER_ELSEWHERE_NS = 20_000
"""The same, once the distance of two hosts' clocks has been taken out."""
_OVERLAPPING = 0.8
"""Share of the collectives that overlap on two ranks; recordings of 4 to 8 ranks have 0.9 to 1."""
_PAIR = 2
_ALIGNMENTS = 64
"""Places that are tried where one rank's recording is a stretch of another's."""


def job_group(
    parts: Mapping[int, Columns], groups: Iterable[Group], world: int, hosts: Mapping[int, str]
) -> Group | None:
    """Find the group that parts without any belong to."""
    bare = {rank: _bare(columns) for rank, columns in parts.items()}
    size = len(parts) if world < 1 else world
    if size < 2 or not any(map(len, bare.values())) or any(each.matches("op", *P2P).any() for each in bare.values()):
        return None
    larger = {group.ranks for group in groups if group.size > 1}
    everyone = tuple(range(size))
    if larger - {everyone}:
        return None
    complete = len(parts) == size
    if not larger and not (_together(bare, hosts) if complete else size == _PAIR):
        return None
    return Group(group_key("", everyone), "", "", "", everyone, size)


def _bare(columns: Columns) -> Columns:
    codes, keys = columns.codes("group")
    return columns.take(lookup([key == "" for key in keys], codes, missing=False))


def _together(bare: Mapping[int, Columns], hosts: Mapping[int, str]) -> bool:
    """Say whether all ranks ran the same, at the same time."""
    first = max(bare, key=lambda rank: len(bare[rank]))
    return all(_tied(bare[first], each, known=_one_clock(hosts, first, rank)) for rank, each in bare.items())


def _one_clock(hosts: Mapping[int, str], first: int, second: int) -> bool:
    return hosts.get(first, "") == hosts.get(second, "")


def _tied(longest: Columns, other: Columns, *, known: bool) -> bool:
    """Say whether a rank's operations are those of the longest recording, or a stretch of them, and end with them."""
    if not len(other):
        return False
    start, end = longest["start_ns"], longest["start_ns"] + longest["dur_ns"]
    own_start, own_end = other["start_ns"], other["start_ns"] + other["dur_ns"]
    for place in _places(longest["op"].tolist(), other["op"].tolist()):
        stretch = slice(place, place + len(other))
        apart = own_end - end[stretch]
        clock = 0 if known else int(np.median(apart))
        overlapping = np.maximum(own_start - clock, start[stretch]) <= np.minimum(own_end - clock, end[stretch])
        limit = _TOGETHER_NS if known else _TOGETHER_ELSEWHERE_NS
        if np.mean(overlapping) >= _OVERLAPPING and np.median(np.abs(apart - clock)) <= limit:
            return True
    return False


def _places(longest: list[str], other: list[str]) -> list[int]:
    """Find where a sequence of operations stands within the longest."""
    sought, within = f" {' '.join(other)} ", f" {' '.join(longest)} "
    found = [match.start() for match in re.finditer(f"(?={re.escape(sought)})", within)][:_ALIGNMENTS]
    return [within[:at].count(" ") for at in found]
