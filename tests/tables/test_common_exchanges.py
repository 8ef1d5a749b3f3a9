"""Unnamed exchanges: assigned to all ranks if a late rank delays all of them, otherwise to none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import made
import numpy as np
import pytest

from usp_prof.tables.communication.peers import grouped
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000


def exchanges(starts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]) -> dict[int, MemorySource]:
    """Make ranks (rows) with exchanges (columns) of no group and no peer; times in microseconds."""
    sources = {}
    for rank, (begun, ended) in enumerate(zip(starts, ends, strict=True)):
        parts = [
            made.part("send_recv", start * 1000, end * 1000, group="", group_size=-1, peer=-1, axis="unknown")
            for start, end in zip(begun, ended, strict=True)
        ]
        tables = made.run({rank: {"collectives": parts}})
        sources[rank] = MemorySource({schema.name: tables.arrow(schema.name) for schema in made.SCHEMAS})
    return sources


def groups(sources: dict[int, MemorySource], world: int) -> set[str]:
    result, _ = grouped(sources, world)
    return {key for source in result.values() for key in source.table("collectives").column("group").to_pylist()}


def arrivals(ranks: int, late: Sequence[int], calls: int = 6) -> np.ndarray:
    """Start calls every 20 ms; the ranks of `late` take turns in starting 5 ms after the others."""
    start = np.tile(np.arange(calls) * 20_000, (ranks, 1)) + np.arange(ranks)[:, None] * 3
    for call in range(calls):
        start[late[call % len(late)], call] += 5_000
    return start


@pytest.mark.parametrize("late", [[2], [0, 3], [0, 1, 2, 3]])
def test_a_late_rank_delays_all(late: list[int]) -> None:
    start = arrivals(4, late)
    end = np.tile(start.max(axis=0) + 200, (4, 1))
    sources = exchanges(start.tolist(), end.tolist())
    assert groups(sources, 4) == {"@0,1,2,3"}
    _, (row,) = grouped(sources, 4)
    assert row.code == "exchanges_grouped"


def test_common_exchanges_are_found_with_clock_offsets_and_later_starts() -> None:
    start = arrivals(4, [2])
    end = np.tile(start.max(axis=0) + 200, (4, 1))
    start[1], end[1] = start[1] + 7_000_000, end[1] + 7_000_000
    starts, ends = start.tolist(), end.tolist()
    starts[3], ends[3] = starts[3][1:], ends[3][1:]
    assert groups(exchanges(starts, ends), 4) == {"@0,1,2,3"}


def test_two_halves_of_the_job_are_not_one_group() -> None:
    """Ranks 0, 1 and ranks 2, 3 exchange separately: a late rank delays only its own half."""
    start = arrivals(4, [2])
    end = np.concatenate([np.tile(start[half].max(axis=0) + 200, (2, 1)) for half in ([0, 1], [2, 3])])
    assert groups(exchanges(start.tolist(), end.tolist()), 4) == {""}


def test_a_pipeline_with_two_stages_is_not_a_group_of_all() -> None:
    """Ranks 0 and 1 send to ranks 2 and 3, each of which waits only for its own sender."""
    start = arrivals(4, [0])
    start[2:] -= 9_000
    end = np.stack([start[sender] + 200 for sender in (0, 1, 0, 1)])
    assert groups(exchanges(start.tolist(), end.tolist()), 4) == {""}


def test_a_ring_is_not_a_group_of_all() -> None:
    """Each rank waits for its two neighbors, not for the rank across."""
    start = arrivals(6, [0])
    end = np.stack([start[[(rank - 1) % 6, rank, (rank + 1) % 6]].max(axis=0) + 200 for rank in range(6)])
    assert groups(exchanges(start.tolist(), end.tolist()), 6) == {""}


def test_without_late_ranks_no_groups_are_inferred() -> None:
    start = np.tile(np.arange(6) * 20_000, (4, 1)) + np.arange(4)[:, None] * 3
    assert groups(exchanges(start.tolist(), (start + 500).tolist()), 4) == {""}


@pytest.mark.parametrize(("ranks", "world"), [(2, 2), (4, 8)])
def test_two_ranks_or_a_part_of_the_job_have_no_common_exchange(ranks: int, world: int) -> None:
    start = arrivals(ranks, [0])
    end = np.tile(start.max(axis=0) + 200, (ranks, 1))
    assert groups(exchanges(start.tolist(), end.tolist()), world) == {""}
