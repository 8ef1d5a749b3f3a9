"""Memory section: memory over time with every rank's peak, reduced to what a browser can draw."""

from __future__ import annotations

from tiny import Trace, table_set

from usp_prof.analyses import memory
from usp_prof.report.sections.compute import MOST_MEMORY_LINES, MOST_MEMORY_POINTS, memory_lines


def trace(rank: int = 0) -> Trace:
    made = Trace(rank=rank, world=6).step(1, at=0, dur=10_000)
    return made.kernel("k", at=100, dur=10, launch_at=50)


def test_a_long_line_keeps_its_peak() -> None:
    run = trace()
    for i in range(3 * MOST_MEMORY_POINTS):
        run = run.memory(1_000 + i, 100, 900_000 if i == 4567 else 1_000 + i % 7)
    tables = table_set(run)
    (line,) = memory_lines(tables, memory.compute(tables)).lines
    assert len(line.time_ns) <= MOST_MEMORY_POINTS
    assert line.time_ns[0] >= 0
    assert line.allocated_bytes.max() == 900_000


def test_the_fullest_ranks_are_drawn() -> None:
    tables = table_set({rank: trace(rank).memory(1_000, 100, 100 + rank) for rank in range(6)})
    drawn = memory_lines(tables, memory.compute(tables)).lines
    assert [line.label for line in drawn] == [f"rank {rank}" for rank in range(6 - MOST_MEMORY_LINES, 6)]


def test_without_allocator_events_nothing_is_drawn() -> None:
    tables = table_set(trace())
    assert memory_lines(tables, memory.compute(tables)).lines == ()
