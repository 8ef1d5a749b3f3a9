"""Peers: as recorded, or from the only group in which the local rank is possible."""

from __future__ import annotations

import tiny


def peers_of(trace: tiny.Trace) -> list[tuple[str, int]]:
    rows = tiny.table_set(trace).columns("collectives", trace.rank)
    return list(zip(rows["op"].tolist(), rows["peer"].tolist(), strict=True))


def posted(trace: tiny.Trace, op: str, place: int, at: int) -> tiny.Trace:
    name = {"send": "c10d::send", "recv": "c10d::recv_"}[op]
    trace.op(name, at, 90, dims=[[[4]], [], [], []], inputs=["", "", str(place), "0"])
    return trace.gloo(op, at + 10, 50, thread=tiny.MAIN)


def test_recorded_peers_count_even_if_one_side_is_missing() -> None:
    trace = tiny.Trace(1, 4, device="cpu")
    both = {"Src Rank": 3, "Dst Rank": 1}
    trace.event("gloo:recv", "user_annotation", 0, 10, args=both)
    trace.event("gloo:send", "user_annotation", 20, 10, args={"Src Rank": 1, "Dst Rank": 2})
    trace.event("gloo:recv", "user_annotation", 40, 10, args={"Src Rank": 0})
    assert peers_of(trace) == [("recv", 3), ("send", 2), ("recv", 0)]


def test_a_peer_within_the_only_group_is_known() -> None:
    trace = tiny.Trace(3, 8, device="cpu").group("0", [1, 3, 5, 7], "default_pg").group("4", [3], "mesh_tp")
    posted(trace, "send", 2, 0)
    posted(trace, "recv", 0, 100)
    assert peers_of(trace) == [("send", 5), ("recv", 1)]


def test_a_peer_within_several_groups_is_not_guessed() -> None:
    trace = tiny.Trace(0, 4, device="cpu").group("0", [0, 1, 2, 3], "other").group("1", [0, 2], "another")
    posted(trace, "send", 1, 0)
    posted(trace, "send", 3, 100)
    assert peers_of(trace) == [("send", -1), ("send", 3)]
