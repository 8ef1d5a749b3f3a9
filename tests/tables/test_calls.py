"""Calls: parts are matched by number, order, step or pair, and arrivals identify the late rank."""

from __future__ import annotations

import made
import pytest
from made import Row, part

from usp_prof.contract import Manifest
from usp_prof.tables import calls

HOST = [{"host": "one", "base_ns": 1}]


def rows(*parts: Row) -> dict[str, list[Row]]:
    return {"collectives": [p | {"part": i} for i, p in enumerate(parts)], "ranks": HOST}


def matched(by_rank: dict[int, dict[str, list[Row]]], manifest: Manifest | None = None) -> tuple[list[Row], list[Row]]:
    tables = made.run(by_rank, manifest)
    return calls.build(tables).to_pylist(), calls.build_parts(tables).to_pylist()


def members(parts: list[Row]) -> list[list[tuple[int, int]]]:
    return [
        [(p["rank"], p["part"]) for p in parts if p["call"] == number] for number in sorted({p["call"] for p in parts})
    ]


def test_numbers_match_in_spite_of_order_and_windows() -> None:
    first = rows(part("all_reduce", 0, 9_000, sequence=7), part("all_reduce", 10_000, 19_000, sequence=8))
    two = rows(part("all_reduce", 12_000, 19_000, sequence=8), part("all_reduce", 20_000, 29_000, sequence=9))
    table, parts = matched({0: first, 1: two})
    assert members(parts) == [[(0, 0)], [(0, 1), (1, 0)], [(1, 1)]]
    assert [row["complete"] for row in table] == [False, True, False]
    full = table[1]
    assert (full["sequence"], full["matched_by"], full["members"], full["group_size"]) == (8, "sequence", 2, 2)
    assert (full["first_ns"], full["last_ns"], full["end_ns"]) == (10_000, 12_000, 19_000)
    assert (full["late_rank"], full["wait_ns"], full["transfer_ns"]) == (1, 2_000, 7_000)
    assert [(p["wait_ns"], p["transfer_ns"]) for p in parts] == [(-1, -1), (2_000, 7_000), (0, 7_000), (-1, -1)]


def test_without_numbers_order_counts_from_the_end() -> None:
    # Rank 1 started recording one call later; sizes distinguish the kinds.
    first = rows(
        part("all_reduce", 0, 9, in_bytes=8, step=-1),
        part("all_reduce", 10, 19, in_bytes=8, step=-1),
        part("all_reduce", 20, 29, in_bytes=64, step=-1),
    )
    two = rows(part("all_reduce", 10, 19, in_bytes=8, step=-1), part("all_reduce", 20, 29, in_bytes=64, step=-1))
    table, parts = matched({0: first, 1: two})
    assert members(parts) == [[(0, 0)], [(0, 1), (1, 0)], [(0, 2), (1, 1)]]
    assert {row["matched_by"] for row in table} == {"order"}


def test_without_numbers_equal_steps_match_inside_steps() -> None:
    # Rank 1 recorded one more step at the end, so counting from the end would pair different steps.
    first = rows(*(part("all_reduce", 10 * s, 10 * s + 5, step=s) for s in (1, 2)))
    two = rows(*(part("all_reduce", 10 * s, 10 * s + 5, step=s) for s in (1, 2, 3)))
    assert members(matched({0: first, 1: two})[1]) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(1, 2)]]


def test_several_parts_of_one_number_match_by_order() -> None:
    both = rows(*(part("all_gather", 10 * i, 10 * i + 5, sequence=3) for i in range(2)))
    assert members(matched({0: both, 1: both})[1]) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


def test_uneven_exchanges_match_regardless_of_size() -> None:
    by_rank = {r: rows(part("all_to_all", 0, 9, in_bytes=8 + r, out_bytes=80)) for r in range(2)}
    table, parts = matched(by_rank)
    assert members(parts) == [[(0, 0), (1, 0)]]
    assert table[0]["bytes"] == 80


def test_groups_of_one_name_with_other_ranks_do_not_mix() -> None:
    by_rank = {r: rows(part("all_reduce", 0, 9, group=f"tp@{r // 2}", sequence=1)) for r in range(4)}
    assert members(matched(by_rank)[1]) == [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]


def test_groups_with_one_or_unknown_members_have_no_calls() -> None:
    by_rank = {0: rows(part("all_reduce", 0, 9, group="", sequence=1), part("all_reduce", 10, 19, group_size=1))}
    assert matched(by_rank) == ([], [])


def test_sends_and_receives_pair_by_direction_and_order() -> None:
    down = {"axis": "pp", "peer": 1}
    up = {"axis": "pp", "peer": 0}
    first = rows(
        part("send", 0, 30_000, **down), part("recv", 31_000, 60_000, **down), part("send", 70_000, 80_000, **down)
    )
    two = rows(
        part("recv", 20_000, 30_000, **up), part("send", 50_000, 60_000, **up), part("recv", 60_000, 80_000, **up)
    )
    table, parts = matched({0: first, 1: two})
    assert members(parts) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert [row["matched_by"] for row in table] == ["p2p"] * 3
    assert [row["late_rank"] for row in table] == [1, 1, 0]


def test_a_receive_waits_only_while_its_peer_has_not_sent() -> None:
    first = rows(part("send", 40, 50, axis="pp", peer=1), part("send", 60, 90, axis="cp", peer=1))
    two = rows(part("recv", 10, 50, axis="pp", peer=0), part("recv", 55, 90, axis="cp", peer=0))
    tables = made.run({0: first, 1: two})
    assert calls.idling(tables, 1, "pp").waiting_ns.tolist() == [30, 0]
    assert calls.idling(tables, 1, "cp").waiting_ns.tolist() == [0, 5]
    assert calls.idling(tables, 0, "pp").waiting_ns.tolist() == [0, 0]


def test_a_posted_send_ends_when_its_receiver_has_it() -> None:
    gloo = {"axis": "pp", "library": "gloo"}
    first = rows(part("send", 40, 200, peer=1, **gloo), part("send", 300, 320, peer=1, **gloo))
    two = rows(part("recv", 10, 60, peer=0, **gloo), part("recv", 300, 340, peer=0, **gloo))
    assert calls.idling(made.run({0: first, 1: two}), 0, "pp").delivered_ns.tolist() == [140, 0]
    late = rows(part("recv", 90, 110, peer=0, **gloo), part("recv", 310, 340, peer=0, **gloo))
    assert calls.idling(made.run({0: first, 1: late}), 0, "pp").waiting_ns.tolist() == [50, 10]
    kernels = {0: rows(part("send", 40, 200, axis="pp", peer=1)), 1: rows(part("recv", 90, 200, axis="pp", peer=0))}
    assert calls.idling(made.run(kernels), 0, "pp").waiting_ns.tolist() == [0]
    assert calls.idling(made.run({0: first, 1: two}), 0, "cp").delivered_ns.tolist() == [0, 0]
    assert calls.idling(made.run({0: first}), 0, "pp").delivered_ns.tolist() == [0, 0]


def test_a_late_receive_does_not_determine_the_end_of_its_send() -> None:
    gloo = {"axis": "pp", "library": "gloo"}
    ms = 1_000_000
    sender = rows(part("send", 0, 2 * ms, peer=1, **gloo), part("send", 10 * ms, 90 * ms, peer=1, **gloo))
    # The first receive is waited for and takes 1 ms. During the second, the receiver computes until it waits at 60 ms.
    receiver = rows(
        part("recv", ms, 2 * ms, peer=0, **gloo),
        part("recv", 5 * ms, 60 * ms + 50_000, peer=0, **gloo),
    ) | {"activities": [made.work("compute", 3 * ms, 60 * ms)]}
    delivered = calls.idling(made.run({0: sender, 1: receiver}), 0, "pp").delivered_ns
    assert delivered.tolist() == [0, 79 * ms]
    # Without a timely wait there is no typical transfer time, so the receive's end is used.
    alone = rows(part("recv", 5 * ms, 60 * ms + 50_000, peer=0, **gloo)) | {
        "activities": [made.work("compute", 3 * ms, 60 * ms)]
    }
    once = rows(part("send", 10 * ms, 90 * ms, peer=1, **gloo))
    assert calls.idling(made.run({0: once, 1: alone}), 0, "pp").delivered_ns.tolist() == [90 * ms - 60 * ms - 50_000]


def test_batched_exchanges_pair_without_direction() -> None:
    by_rank = {r: rows(part("send_recv", 10 * r, 50, peer=1 - r, axis="cp")) for r in range(2)}
    table, parts = matched(by_rank)
    assert members(parts) == [[(0, 0), (1, 0)]]
    assert table[0]["complete"]


def test_tied_arrivals_have_no_late_rank() -> None:
    same = {r: rows(part("all_reduce", 100, 9_000, sequence=1)) for r in range(2)}
    assert matched(same)[0][0]["late_rank"] == -1
    close = {r: rows(part("all_reduce", 100 + 900 * r, 9_000, sequence=1)) for r in range(2)}
    assert matched(close)[0][0]["late_rank"] == -1
    apart = {r: rows(part("all_reduce", 100 + 1_100 * r, 9_000, sequence=1)) for r in range(2)}
    assert matched(apart)[0][0]["late_rank"] == 1


@pytest.mark.parametrize(("hosts", "per_node", "crosses"), [
    (("a", "a"), 0, False), (("a", "b"), 0, True), (("", ""), 1, True), (("", ""), 8, False),
])  # fmt: skip
def test_calls_know_whether_they_leave_the_node(hosts: tuple[str, str], per_node: int, crosses: bool) -> None:
    by_rank = {
        r: rows(part("all_reduce", 0, 9, sequence=1)) | {"ranks": [{"host": hosts[r], "base_ns": 1}]} for r in range(2)
    }
    table, _ = matched(by_rank, Manifest(devices_per_node=per_node))
    assert table[0]["inter_node"] is crosses


def test_calls_of_a_prediction_are_those_that_were_recorded() -> None:
    # No part has a sequence number, and two on rank 1 are swapped, so matching by order would be wrong.
    parts = [part("all_reduce", 10 * i, 10 * i + 5) for i in range(3)]
    moved = {0: rows(*parts), 1: rows(parts[0], parts[2], parts[1])}
    assert members(matched(moved)[1]) == [[(0, 0), (1, 0)], [(0, 1), (1, 2)], [(0, 2), (1, 1)]]
    # Nothing was predicted for the first step.
    predicted = made.run(
        {rank: {**rows_of_rank, "collectives": rows_of_rank["collectives"][1:]} for rank, rows_of_rank in moved.items()}
    )
    predicted.recorded = made.run({rank: rows(*parts) for rank in (0, 1)})
    assert members(calls.build_parts(predicted).to_pylist()) == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert {row["matched_by"] for row in calls.build(predicted).to_pylist()} == {"order"}


def test_tables_are_built_from_the_same_match() -> None:
    tables = made.run({r: rows(part("all_reduce", 0, 9, sequence=1)) for r in range(2)})
    assert calls.build(tables).num_rows == 1
    assert calls.build_parts(tables).num_rows == 2
    assert calls.build(made.run({0: {}})).num_rows == 0


def test_the_last_arrival_is_known_even_without_a_late_rank() -> None:
    """The critical path continues at the last rank to arrive, even if the difference is within the clock tolerance."""
    first_is_last = {r: rows(part("all_reduce", 1_000 - 900 * r, 9_000, sequence=1)) for r in range(2)}
    result = calls.match_calls(made.run(first_is_last))
    assert result.columns()["late_rank"].tolist() == [-1]
    assert result.last_rank.tolist() == [0]
    assert result.among([1]).last_rank.tolist() == [-1]
    together = {r: rows(part("all_reduce", 100, 9_000, sequence=1)) for r in range(2)}
    assert calls.match_calls(made.run(together)).last_rank.tolist() == [1]
