"""Unnamed communication: assigned to the ranks that wait for a late one, otherwise to none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import made
import numpy as np
import pytest
from made_training import Delay, Job

from usp_prof.model.edit import Edit
from usp_prof.run import open_run
from usp_prof.tables.communication.unnamed_groups import name_groups
from usp_prof.tables.table_set import MemorySource
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

MS = 1_000_000


def exchanges(
    starts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]], op: str = "send_recv", lanes: Sequence[str] = ("",)
) -> dict[int, MemorySource]:
    """Make ranks (rows) with calls (columns) of no group and no peer, on the lanes in turn; times in microseconds."""
    sources = {}
    for rank, (begun, ended) in enumerate(zip(starts, ends, strict=True)):
        parts = [
            made.part(
                op, start * 1000, end * 1000, group="", group_size=-1, peer=-1, axis="unknown",
                lane=lanes[call % len(lanes)],
            )
            for call, (start, end) in enumerate(zip(begun, ended, strict=True))
        ]  # fmt: skip
        tables = made.run({rank: {"collectives": parts}})
        sources[rank] = MemorySource({schema.name: tables.arrow(schema.name) for schema in made.SCHEMAS})
    return sources


def groups(sources: dict[int, MemorySource], world: int) -> set[str]:
    result, _ = name_groups(sources, world)
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
    _, (row,) = name_groups(sources, 4)
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


def in_groups(partition: Sequence[Sequence[int]], late: Sequence[int], calls: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of calls in which the members of each group wait for each other."""
    start = arrivals(sum(map(len, partition)), late, calls)
    end = np.empty_like(start)
    for group in partition:
        end[group] = start[group].max(axis=0) + 200
    return start, end


@pytest.mark.parametrize("late", [[0, 3, 1, 2], [0, 3]])
@pytest.mark.parametrize("partition", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1], [2, 3], [4, 5], [6, 7]]])
def test_groups_of_a_mesh_are_those_whose_members_wait(partition: list[list[int]], late: list[int]) -> None:
    start, end = in_groups(partition, late)
    keys = groups(exchanges(start.tolist(), end.tolist(), "all_reduce"), start.shape[0])
    assert keys == {f"@{','.join(map(str, group))}" for group in partition}


def test_pairs_that_are_parts_of_other_groups_are_not_named() -> None:
    """The groups join the first and last axis of a mesh of 2 x 2 x 2, which no stride describes."""
    start, end = in_groups([[0, 1, 4, 5], [2, 3, 6, 7]], late=[0, 3, 1, 2])
    assert groups(exchanges(start.tolist(), end.tolist(), "all_reduce"), 8) == {""}


def test_each_stream_is_a_sequence_of_its_own() -> None:
    """Calls of pairs and of all ranks alternate on two streams."""
    start, end = in_groups([[0, 1], [2, 3]], late=[0, 0, 3, 3, 1, 1, 2, 2], calls=16)
    end[:, 1::2] = start[:, 1::2].max(axis=0) + 200
    sources = exchanges(start.tolist(), end.tolist(), "all_reduce", ("stream 7", "stream 9"))
    assert groups(sources, 4) == {"stream 7@0,1", "stream 7@2,3", "stream 9@0,1,2,3"}


@pytest.mark.parametrize("seed", range(5))
def test_scattered_timestamps_do_not_split_a_group(seed: int) -> None:
    """Device timestamps of V100 hosts scatter by tens of microseconds."""
    start, end = in_groups([[0, 1, 2, 3]], late=[1, 1, 3], calls=30)
    scatter = np.random.default_rng(seed).normal(0, 20, start.shape).astype(int)
    keys = groups(exchanges((start + scatter).tolist(), (end + scatter).tolist(), "all_to_all"), 4)
    assert keys == {"@0,1,2,3"}


def test_two_ranks_that_reduce_are_a_group() -> None:
    start, end = in_groups([[0, 1]], late=[0, 1])
    assert groups(exchanges(start.tolist(), end.tolist(), "all_reduce"), 2) == {"@0,1"}


def run_without_names(layout: str, seed: int, delay: Delay, folder: Path) -> tuple[TableSet, TableSet]:
    """Return a made run as recorded, and without what names its groups."""
    job = Job(layout, seed)
    job.simulate(delay, seed)
    both = []
    for job.has_records in (True, False):
        job.write(folder / f"named-{job.has_records}")
        both.append(open_run(folder / f"named-{job.has_records}", cache_dir=folder / "cache").tables)
    return both[0], both[1]


@pytest.mark.parametrize(
    ("layout", "of_op"), [("sharded-tensors", {"all_gather"}), ("tensor-parallel", {"all_reduce"})]
)
def test_the_groups_of_a_made_job_are_found_without_names(layout: str, of_op: set[str], tmp_path: Path) -> None:
    named_run, unnamed_run = run_without_names(layout, 3, Delay("late_input", 2, 5_000), tmp_path)
    compared = 0
    for rank in named_run.ranks:
        own, other = (tables.columns("collectives", rank) for tables in (named_run, unnamed_run))
        for op in set(own["op"].tolist()):
            true = [key.split("@")[1] for key in own["group"][own.matches("op", op)].tolist()]
            inferred = other["group"][other.matches("op", op)].tolist()
            if "" in inferred:
                assert set(inferred) == {""}
                assert op not in of_op
            else:
                assert [key.split("@")[1] for key in inferred] == true
                compared += len(true)
    assert compared
    gains = [predict(tables, [Edit("rank_as_peers", "2")]) for tables in (named_run, unnamed_run)]
    assert gains[1].gain_fraction == pytest.approx(gains[0].gain_fraction, abs=gains[1].error_fraction)
