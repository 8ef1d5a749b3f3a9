"""Clocks: skewed and drifting ones are recovered, correct ones are unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import made
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import part

from usp_prof.tables import clock
from usp_prof.tables.matching import least_squares
from usp_prof.tables.matching.clocks import SAME_CLOCK_TOLERANCE_NS, Clock

BASE = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True)
class World:
    """Hosts with skewed, drifting clocks and two ranks each; collectives over pairs of hosts and over all ranks."""

    hosts: int = 4
    offset_ns: tuple[int, ...] = (0, 5_000_000, -5_000_000, 1_234_567)
    drift_ppm: tuple[float, ...] = (0.0, 50.0, -50.0, 20.0)
    seconds: float = 2.0
    calls: int = 400
    jitter_ns: float = 3_000.0
    wild: float = 0.02
    seed: int = 0

    def local(self, host: int, common: np.ndarray) -> np.ndarray:
        drifted = np.rint((common - BASE) * self.drift_ppm[host] * 1e-6).astype(np.int64)
        return common - self.offset_ns[host] - drifted

    def rows(self, groups: tuple[tuple[int, ...], ...]) -> dict[int, dict[str, list[made.Row]]]:
        random = np.random.default_rng(self.seed)
        ranks = range(2 * self.hosts)
        tables = {r: {"collectives": [], "ranks": [{"host": f"node{r // 2}", "base_ns": 1}]} for r in ranks}
        for number, members in enumerate(groups):
            ends = BASE + np.sort(random.integers(0, int(self.seconds * SECOND), self.calls))
            name = f"g{number}@{','.join(map(str, members))}"
            for rank in members:
                late = np.where(random.random(self.calls) < self.wild, 2e6, 0) + random.normal(
                    0, self.jitter_ns, len(ends)
                )
                end = self.local(rank // 2, ends + late.astype(np.int64))
                start = end - random.integers(20_000, 900_000, self.calls)
                tables[rank]["collectives"] += [
                    part("all_reduce", int(a), int(b), group=name, group_size=len(members), sequence=i)
                    | {"part": number * self.calls + i}
                    for i, (a, b) in enumerate(zip(start, end, strict=True))
                ]  # fmt: skip
        return tables

    def errors(self, solved: Clock, ranks: tuple[int, ...]) -> np.ndarray:
        """Errors against rank 0's clock over the window."""
        moments = BASE + np.linspace(0, self.seconds * SECOND, 50).astype(np.int64)
        return np.concatenate([solved.align(r, self.local(r // 2, moments)) - moments for r in ranks])


ALL = (tuple(range(8)),)
CHAIN = ((0, 2), (3, 4), (5, 6))


@pytest.mark.parametrize("groups", [ALL, CHAIN, ((0, 1, 2, 3), (3, 4, 5), (4, 6, 7))])
def test_skew_and_drift_are_recovered_within_20_us(groups: tuple[tuple[int, ...], ...]) -> None:
    world = World()
    solved = clock.fit_clocks(made.run(world.rows(groups)))
    assert solved.components == 1
    assert np.quantile(np.abs(world.errors(solved, tuple(range(8)))), 0.99) < 20_000
    assert np.abs(solved.drift_ppm - np.repeat(world.drift_ppm, 2)).max() < 8
    assert (solved.residual_p50_ns < 10_000).all()


@pytest.mark.parametrize("groups", [ALL, CHAIN])
def test_few_clocks_are_solved_like_thousands(
    groups: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = clock.fit_clocks(made.run(World().rows(groups)))
    monkeypatch.setattr(least_squares, "DENSE_AT_MOST", 0)
    many = clock.fit_clocks(made.run(World().rows(groups)))
    assert few.offset_ns.tolist() == many.offset_ns.tolist()
    assert np.allclose(few.drift_ppm, many.drift_ppm, rtol=1e-9)


def test_one_wrong_match_in_ten_does_not_shift_clocks() -> None:
    world = World(wild=0.1)
    solved = clock.fit_clocks(made.run(world.rows(ALL)))
    assert np.quantile(np.abs(world.errors(solved, tuple(range(8)))), 0.99) < 20_000


def test_good_clocks_are_not_made_worse() -> None:
    world = World(offset_ns=(0, 0, 0, 0), drift_ppm=(0.0,) * 4, seconds=0.3, calls=60)
    solved = clock.fit_clocks(made.run(world.rows(ALL)))
    assert np.abs(world.errors(solved, tuple(range(8)))).max() < 3_000
    assert np.isnan(solved.drift_ppm).all()


def test_a_drift_inferred_only_from_another_clocks_drift_is_ignored() -> None:
    """With this noise, three drifts fitted together seem certain, but two of them without the third do not."""
    world = World(offset_ns=(0, -4, 0, -7), drift_ppm=(0.0,) * 4, seconds=0.0625, calls=33, jitter_ns=1e3, seed=600)
    solved = clock.fit_clocks(made.run(world.rows(CHAIN)))
    assert np.isnan(solved.drift_ppm).all()
    assert not solved.offset_ns.any()


def left_alone(world: World) -> np.ndarray:
    """Return the errors of unaligned clocks."""
    moments = BASE + np.linspace(0, world.seconds * SECOND, 50).astype(np.int64)
    return np.concatenate([world.local(rank // 2, moments) - moments for rank in range(8)])


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    scale=st.floats(1.0, 6.7),
    drifts=st.sampled_from([0.0, 20.0, 50.0]),
    seconds=st.floats(0.03, 3),
    calls=st.integers(12, 150),
    jitter=st.floats(2.0, 4.3),
    groups=st.sampled_from([ALL, CHAIN]),
    seed=st.integers(0, 10_000),
)
def test_aligned_clocks_are_never_worse_than_clocks_left_alone(
    scale: float,
    drifts: float,
    seconds: float,
    calls: int,
    jitter: float,
    groups: tuple[tuple[int, ...], ...],
    seed: int,
) -> None:
    """From a dozen noisy calls to many good ones, from clocks that agree to 5 ms apart; but for 3 standard errors."""
    random = np.random.default_rng(seed)
    world = World(
        offset_ns=(0, *(int(offset) for offset in random.normal(0, 10**scale, 3))),
        drift_ppm=(0.0, *random.normal(0, drifts, 3).tolist()),
        seconds=seconds, calls=calls, jitter_ns=10**jitter, seed=seed,
    )  # fmt: skip
    solved = clock.fit_clocks(made.run(world.rows(groups)))
    worst, alone = (np.quantile(np.abs(e), 0.99) for e in (world.errors(solved, tuple(range(8))), left_alone(world)))
    assert worst <= max(alone, SAME_CLOCK_TOLERANCE_NS) + 3 * world.jitter_ns / calls**0.5


@pytest.mark.parametrize(("skew", "solved"), [(70_000_000, 70_000_000), (5_000, 0)])
def test_a_single_shared_call_gives_only_offsets_beyond_its_noise(skew: int, solved: int) -> None:
    rows = {
        rank: {
            "collectives": [part("all_reduce", 0, 900_000 - rank * skew, sequence=0, group="g@0,1")],
            "ranks": [{"host": f"h{rank}", "base_ns": 1}],
        }
        for rank in range(2)
    }
    assert clock.fit_clocks(made.run(rows)).offset_ns.tolist() == [0, solved]


def test_files_without_a_host_share_a_clock_unless_contradicted() -> None:
    world = World(offset_ns=(0,) * 4, drift_ppm=(0.0,) * 4, jitter_ns=50_000, wild=0)
    rows = world.rows(ALL)
    for tables in rows.values():
        tables["ranks"] = [{"host": "", "base_ns": 1}]
    solved = clock.fit_clocks(made.run(rows))
    assert solved.offset_ns.tolist() == [0] * 8
    skewed = World(jitter_ns=1_000).rows(ALL)
    for tables in skewed.values():
        tables["ranks"] = [{"host": "", "base_ns": 1}]
    assert np.abs(World().errors(clock.fit_clocks(made.run(skewed)), tuple(range(8)))).max() < 20_000


def test_files_without_a_time_base_have_separate_clocks() -> None:
    world = World(offset_ns=(0, 10**18, 0, 0), drift_ppm=(0.0,) * 4)
    rows = world.rows(ALL)
    for rank, tables in rows.items():
        tables["ranks"] = [{"host": "one", "base_ns": 0 if rank in {2, 3} else 1}]
    solved = clock.fit_clocks(made.run(rows))
    assert np.abs(world.errors(solved, tuple(range(8)))).max() < 5_000
    assert len(set(solved.domain.tolist())) == 3


def test_unconnected_ranks_are_separate_components() -> None:
    solved = clock.fit_clocks(made.run(World().rows(((0, 2), (4, 6)))))
    assert solved.component.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert solved.ties.tolist() == [400, 0, 400, 0, 400, 0, 400, 0]
    assert solved.residual_p50_ns[1] == -1


def test_sends_and_receives_connect_clocks_without_collectives() -> None:
    host = [{"ranks": [{"host": f"h{r}", "base_ns": 1}]} for r in range(2)]
    ends = BASE + np.arange(1, 41) * 10_000_000
    for r, row in enumerate(host):
        row["collectives"] = [
            part("send" if (i + r) % 2 else "recv", int(e) - r * 7_000_000 - 50_000, int(e) - r * 7_000_000,
                 peer=1 - r, part=i, axis="pp")
            for i, e in enumerate(ends)
        ]  # fmt: skip
    solved = clock.fit_clocks(made.run(dict(enumerate(host))))
    assert solved.offset_ns.tolist() == [0, 7_000_000]
    assert solved.components == 1


def test_the_table_has_the_fitted_clocks_and_one_rank_needs_none() -> None:
    table = clock.build(made.run({3: {"ranks": [{"host": "a", "base_ns": 1}]}})).to_pylist()
    assert table[0] | {"drift_ppm": 0} == {
        "rank": 3, "host": "a", "component": 0, "offset_ns": 0, "drift_ppm": 0, "reference_ns": 0,
        "residual_p50_ns": -1, "residual_p99_ns": -1, "ties": 0,
    }  # fmt: skip


def test_local_is_the_inverse_of_align() -> None:
    world = World()
    solved = clock.fit_clocks(made.run(world.rows(ALL)))
    moments = BASE + np.arange(5) * 100_000_001
    for rank in (0, 2, 5):
        assert np.abs(solved.local(rank, solved.align(rank, moments)) - moments).max() <= 1


@pytest.mark.parametrize("shift_ns", [300_000, 5_000_000, SECOND, -SECOND])
@pytest.mark.parametrize("shifted", [{1}, {1, 6}])
def test_ranks_with_one_host_name_may_have_different_clocks(shifted: set[int], shift_ns: int) -> None:
    """All containers are named localhost; collectives show which of them have separate clocks."""
    world = World(offset_ns=(0,) * 4, drift_ppm=(0.0,) * 4)
    rows = world.rows(ALL)
    for rank, tables in rows.items():
        tables["ranks"] = [{"host": "localhost", "base_ns": 1}]
        if rank in shifted:
            for call in tables["collectives"]:
                call["start_ns"] += shift_ns
    solved = clock.fit_clocks(made.run(rows))
    assert set(np.flatnonzero(solved.contradicted).tolist()) == shifted
    assert solved.components == 1
    moments = BASE + np.linspace(0, 2 * SECOND, 50).astype(np.int64)
    for rank in range(8):
        local = moments + (shift_ns if rank in shifted else 0)
        assert np.abs(solved.align(rank, local) - moments).max() < 5_000


def test_ranks_of_one_host_share_a_clock_despite_some_calls() -> None:
    world = World(offset_ns=(0,) * 4, drift_ppm=(0.0,) * 4, wild=0.05)
    rows = world.rows(ALL)
    for tables in rows.values():
        tables["ranks"] = [{"host": "localhost", "base_ns": 1}]
    solved = clock.fit_clocks(made.run(rows))
    assert not solved.contradicted.any()
    assert not solved.apart.any()
    assert (solved.offset_ns == 0).all()


@pytest.mark.parametrize("jump_ns", [400_000, -2_000_000, 50_000_000])
def test_a_clock_that_jumps_is_not_compared(jump_ns: int) -> None:
    rows = World().rows(ALL)
    middle = BASE + SECOND
    for call in rows[5]["collectives"]:
        call["start_ns"] += jump_ns if call["start_ns"] > middle else 0
    solved = clock.fit_clocks(made.run(rows))
    assert np.flatnonzero(solved.jumps_ns).tolist() == [5]
    assert solved.jumps_ns[5] == pytest.approx(jump_ns, rel=0.1)
    assert solved.components == 2


def _two_hosts_without_names(
    calls: int, apart_ns: int, last_takes_ns: int = 5_000_000
) -> dict[int, dict[str, list[made.Row]]]:
    """Four ranks of two hosts: many calls within each host, and few between them, in which all wait for long."""
    tables: dict[int, dict[str, list[made.Row]]] = {}
    for rank in range(4):
        took = last_takes_ns + 90_000 * (3 - rank)
        shift, own = (apart_ns if rank > 1 else 0), f"h{rank // 2}@{2 * (rank // 2)},{2 * (rank // 2) + 1}"
        rows = [
            part("all_reduce", at, at + 400_000, group=own, group_size=2, sequence=number) | {"part": number}
            for number in range(30)
            for at in (BASE + shift + number * 10_000_000 + 2_000 * rank,)
        ]
        rows += [
            part("all_reduce", end - took, end, group="w@0,1,2,3", group_size=4, sequence=number)
            | {"part": 100 + number}
            for number in range(calls)
            for end in (BASE + shift + 300_000_000 + number * 10_000_000 + 3_000 * rank,)
        ]
        tables[rank] = {"collectives": rows, "ranks": [{"host": "", "base_ns": 1}]}
    return tables


@pytest.mark.parametrize(("calls", "apart_ns", "clocks"), [(2, 1_600_000, 2), (2, 90_000, 1), (1, 1_600_000, 1)])
def test_hosts_without_names_have_several_clocks_if_two_calls_show_it(calls: int, apart_ns: int, clocks: int) -> None:
    """No member seems to end before the last one starts, because all wait longer than the clocks differ."""
    solved = clock.fit_clocks(made.run(_two_hosts_without_names(calls, apart_ns)))
    assert len(set(solved.domain.tolist())) == clocks
    if clocks > 1:
        assert np.ptp(solved.offset_ns[[0, 2]]) == pytest.approx(apart_ns, abs=20_000)
        assert solved.domain[0] == solved.domain[1]


@pytest.mark.parametrize(("scatter_ns", "clocks"), [(3_000, 2), (60_000, 1)])
def test_hosts_that_are_less_apart_need_ranks_that_are_closer(scatter_ns: int, clocks: int) -> None:
    tables = _two_hosts_without_names(4, 200_000, last_takes_ns=300_000)
    for rank, of_rank in tables.items():
        for row in of_rank["collectives"]:
            row["start_ns"] += scatter_ns * (rank % 2)
    assert len(set(clock.fit_clocks(made.run(tables)).domain.tolist())) == clocks
