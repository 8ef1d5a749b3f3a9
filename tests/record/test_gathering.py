from __future__ import annotations

import time

import torch.distributed as dist

from usp_prof.record.gathering import Exchange, Part


def test_rank_0_hears_of_all_that_left_their_part() -> None:
    store = dist.HashStore()
    for rank in (1, 2):
        Exchange(3, 0, store).leave(Part(rank, host=f"h{rank}", join_rate=0.5, notes=["n"], final=True))
    first = Exchange(3, 0, store)
    first.leave(Part(0, host="h0"))
    parts = first.collect(wait_seconds=5)
    assert {rank: part.host for rank, part in parts.items()} == {0: "h0", 1: "h1", 2: "h2"}
    assert parts[1] == Part(1, host="h1", join_rate=0.5, notes=["n"], final=True)


def test_a_dead_rank_costs_the_time_limit_and_its_last_word_stays() -> None:
    store = dist.HashStore()
    Exchange(3, 0, store).leave(Part(1, host="began"))
    first = Exchange(3, 0, store)
    first.leave(Part(0))
    start = time.monotonic()
    parts = first.collect(wait_seconds=0.2)
    assert time.monotonic() - start < 5
    assert sorted(parts) == [0, 1]
    assert parts[1].host == "began"


def test_a_remainder_of_the_time_limit_is_not_taken_for_none() -> None:
    store = dist.HashStore()
    start = time.monotonic()
    assert Exchange(4, 0, store).collect(wait_seconds=0.0004) == {}
    assert time.monotonic() - start < 5


def test_sessions_do_not_mix() -> None:
    store = dist.HashStore()
    Exchange(2, 0, store).leave(Part(1, final=True))
    assert Exchange(2, 1, store).collect(wait_seconds=0) == {}


def test_without_a_store_a_rank_knows_itself() -> None:
    exchange = Exchange(2, 0, None)
    exchange.leave(Part(1))
    assert exchange.collect(wait_seconds=0) == {1: Part(1)}
