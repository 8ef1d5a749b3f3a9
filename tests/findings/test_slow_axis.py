"""A slow axis without peers: compared with gigabit Ethernet and with the run's other groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.findings import find
from usp_prof.findings.rules.links import SlowLink

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US = 1_000
FLOATS = 50_000
"""200 kB: 1.6 ms over gigabit Ethernet."""


def run(
    transfer_us: int, *, latency_us: int = 200, floats: int = FLOATS, axis: str = "dp", disturbed_us: int = 0
) -> TableSet:
    """Make two ranks: six messages per step on an axis, and a small world sum, disturbed after the first step."""
    traces = {}
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2, device="cpu")
        trace.group("1", [0, 1], f"mesh_{axis}").group("2", [0, 1], "mesh_log")
        at, number = 0, 0
        for step in range(3):
            begin = at
            for _ in range(6):
                trace.op("aten::mm", at, 2_000 * US, dims=[[64, 64], [64, 64]], types=["float", "float"])
                at += 2_010 * US
                sent = {"dims": (floats,), "group": "1", "sequence": number, "posted_at": at - 5 * US}
                trace.gloo("all_reduce", at, transfer_us * US, **sent)
                at += (transfer_us + 10) * US
                number += 1
            small_ns = (latency_us + (disturbed_us if step else 0)) * US
            trace.gloo("all_reduce", at, small_ns, group="2", sequence=step, thread=201, posted_at=at - 5 * US)
            at += small_ns + 50 * US
            trace.step(step, begin, at - begin)
    return table_set(traces, Manifest(device="cpu"))


def whole_axes(tables: TableSet) -> list[tuple[dict, str]]:
    return [(dict(draft.where), str(draft.edit)) for draft in SlowLink.look(tables)]


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_messages_that_take_far_longer_than_over_ethernet_are_a_slow_link(axis: str) -> None:
    tables = run(9_000, axis=axis)
    assert whole_axes(tables) == [({"axis": axis}, f"comm_faster=5,axis={axis}")]  # 9 ms instead of 0.2 + 1.6 ms
    first = find(tables)[0]
    assert (first.code, dict(first.where)) == ("slow-link", {"axis": axis})


def test_a_busy_host_that_delays_other_groups_does_not_hide_a_slow_axis() -> None:
    assert whole_axes(run(9_000, disturbed_us=9_000)) == [({"axis": "dp"}, "comm_faster=5,axis=dp")]


def test_a_healthy_socket_is_not_a_slow_axis() -> None:
    assert whole_axes(run(600)) == []


def test_small_messages_may_take_the_latency_that_the_other_groups_have() -> None:
    assert whole_axes(run(9_000, latency_us=200, floats=100))
    assert whole_axes(run(9_000, latency_us=8_000, floats=100)) == []  # the machine is slow, not this axis


def test_small_messages_queued_on_a_busy_host_are_not_a_slow_axis() -> None:
    assert whole_axes(run(15_000, latency_us=6_000, floats=4_000)) == []


def burst(first_us: int, *, rest_us: int = 600, world_us: tuple[int, ...] = (200, 200, 200)) -> TableSet:
    """Make two ranks that post four dp messages at once, of which gloo sends two at a time; then a small all-reduce."""
    traces = {}
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2, device="cpu")
        trace.group("1", [0, 1], "mesh_dp").group("2", [0, 1], "mesh_log")
        at = 0
        for step, small_us in enumerate(world_us):
            begin = at
            trace.op("aten::mm", at, 20_000 * US, dims=[[64, 64], [64, 64]], types=["float", "float"])
            posted_at = at + 20_000 * US
            for place in range(4):
                lane, is_rest = place % 2, place > 1
                start = posted_at + 10 * US + (first_us * US if is_rest else 0)
                sent = {"dims": (FLOATS,), "group": "1", "sequence": 4 * step + place, "posted_at": posted_at}
                trace.gloo("all_reduce", start, (rest_us if is_rest else first_us) * US, thread=201 + lane, **sent)
            at = posted_at + (first_us + rest_us + 100) * US
            trace.gloo("all_reduce", at, small_us * US, group="2", sequence=step, thread=203, posted_at=at - 5 * US)
            at += small_us * US + 50 * US
            trace.step(step, begin, at - begin)
    return table_set(traces, Manifest(device="cpu"))


def test_queued_messages_do_not_hide_a_slow_link() -> None:
    assert whole_axes(burst(first_us=150_000))
    assert find(burst(first_us=150_000))[0].code == "slow-link"
    assert whole_axes(burst(first_us=600)) == []
    assert whole_axes(burst(first_us=9_000)) == [], "busy for 9.6 ms, where four messages of 1.8 ms take 7.2"


def test_latency_alone_does_not_make_a_slow_axis() -> None:
    tables = run(9_000, latency_us=200, floats=100, disturbed_us=20_000)
    assert whole_axes(tables) == [], "the others' best is 0.2 ms, their median 20"


def two_stages(forward_us: int, backward_us: int = 300) -> TableSet:
    """Make two pipeline ranks that exchange four messages per step; those of backward are sent late."""
    traces = {}
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2, device="cpu")
        trace.group("1", [0, 1], "mesh_pp").group("2", [0, 1], "mesh_log")
        at = 0
        for step in range(3):
            begin = at
            for _ in range(4):
                trace.op("aten::mm", at, 2_000 * US, dims=[[64, 64], [64, 64]], types=["float", "float"])
                at += 2_010 * US
                message = {"dims": (4_000,), "group": "1", "peer": 1 - rank}
                trace.gloo("recv" if rank else "send", at, forward_us * US, **message)
                at += (forward_us + 10) * US
                early = 0 if rank else 1_500 * US  # rank 0 waits for the sender
                trace.gloo("send" if rank else "recv", at - early, backward_us * US + early, **message, thread=201)
                at += (backward_us + 10) * US
            trace.gloo("all_reduce", at, 200 * US, group="2", sequence=step, thread=203, posted_at=at - 5 * US)
            at += 250 * US
            trace.step(step, begin, at - begin)
    return table_set(traces, Manifest(device="cpu"))


def test_a_link_that_is_slow_in_one_direction_is_slow() -> None:
    assert [where for where, _ in whole_axes(two_stages(forward_us=20_000))] == [{"axis": "pp"}]
    assert whole_axes(two_stages(forward_us=300)) == []
