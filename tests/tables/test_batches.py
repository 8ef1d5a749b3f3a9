"""Batches: sends and receives that run as one kernel, which names none of them."""

from __future__ import annotations

from tiny import Trace, table_set

from usp_prof.tables.calls import build

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
Message = tuple[str, int]


def _ring(rank: int, world: int) -> list[Message]:
    return [("send", (rank + 1) % world), ("recv", (rank - 1) % world)]


def _batch(trace: Trace, messages: list[Message], at: int, *, records: bool = True) -> None:
    """Post messages from time `at` on, and run them as one kernel, launched after the last post."""
    for number, (op, peer) in enumerate(messages):
        posted = at + 40 * number
        name = "c10d::send" if op == "send" else "c10d::recv_"
        trace.op(name, posted, 30, inputs=["", "", str(peer), "0"])
        if records:
            args = {"Collective name": op, "Process Group Name": "1", "Group size": trace.world, "In msg nelems": 8}
            args |= {"dtype": "Float", "Dst Rank" if op == "send" else "Src Rank": peer}
            trace.op("record_param_comms", posted + 5, 20, args=args)
    trace.kernel(KERNEL, at + 1_000, 500, stream=20, launch_at=at + 40 * len(messages))


def _run(world: int, *, records: bool = True) -> dict[int, Trace]:
    traces = {}
    for rank in range(world):
        trace = traces[rank] = Trace(rank, world).group("1", range(world)).step(1, 0, 20_000)
        for number in range(3):
            _batch(trace, _ring(rank, world), 1_000 + 5_000 * number, records=records)
    return traces


def test_a_batch_has_a_part_for_each_message_and_one_activity() -> None:
    tables = table_set(_run(3))
    parts = tables.columns("collectives", 1)
    assert parts["op"].tolist() == ["recv", "send"] * 3
    assert parts["peer"].tolist() == [0, 2] * 3
    assert set(parts["group"].tolist()) == {"1@0,1,2"}
    assert (parts["event"][0::2] == parts["event"][1::2]).all()
    communication = tables.columns("activities", 1)
    assert communication["collective"][communication["collective"] >= 0].tolist() == [0, 2, 4]


def test_c10d_ops_describe_a_batch_if_nothing_else_was_recorded() -> None:
    parts = table_set(_run(3, records=False)).columns("collectives", 1)
    assert parts["op"].tolist() == ["recv", "send"] * 3
    assert parts["peer"].tolist() == [0, 2] * 3


def test_each_message_is_a_call_of_its_sender_and_its_receiver() -> None:
    calls = build(table_set(_run(4))).to_pylist()
    assert len(calls) == 12
    assert all(call["matched_by"] == "p2p" and call["members"] == 2 and call["complete"] for call in calls)


def test_a_record_around_a_launch_is_not_part_of_a_later_batch() -> None:
    trace = Trace(0, 2).group("1", [0, 1]).step(1, 0, 20_000)
    trace.collective("send", 2_000, 100, group="1", launch_at=1_000, peer=1)
    trace.kernel(KERNEL, 4_000, 100, stream=20, launch_at=3_000)
    parts = table_set({0: trace}).columns("collectives", 0)
    assert parts["op"].tolist() == ["send", "send_recv"]
    assert parts["peer"].tolist() == [1, -1]


def test_posts_of_another_thread_are_not_part_of_a_batch() -> None:
    trace = Trace(0, 2).group("1", [0, 1]).step(1, 0, 20_000)
    trace.op("record_param_comms", 900, 20, thread=7, args={"Collective name": "send", "Dst Rank": 1})
    trace.kernel(KERNEL, 4_000, 100, stream=20, launch_at=3_000)
    assert table_set({0: trace}).columns("collectives", 0)["op"].tolist() == ["send_recv"]
