from __future__ import annotations

import pytest
from tiny import BASE, Trace, table_set

from usp_prof.tables.actions import Action, parse_action


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("pp::F stage=1 mb=3", Action("F", 1, 3, "mark")),
        ("pp::W stage=0 mb=0", Action("W", 0, 0, "mark")),
        ("pp::send_f stage=1 mb=3 peer=2", None),
        ("pp::B", Action("B", -1, -1, "mark")),
        ("cp::ring_wait", None),
        ("PP:12F34", Action("F", 12, 34, "torch")),
        ("PP:1RECV_F0", None),
        ("Forward 3", Action("F", -1, 3, "torch")),
        ("Backward 0", Action("B", -1, 0, "torch")),
        ("forward-step", Action("F", -1, -1, "megatron")),
        ("PipelineEngine._exec_backward_pass", Action("B", -1, -1, "deepspeed")),
        ("aten::mm", None),
    ],
)
def test_action_marks_of_all_grammars_are_parsed(name: str, action: Action | None) -> None:
    assert parse_action(name) == action


def test_actions_have_the_device_time_of_what_they_launched() -> None:
    trace = Trace().step(1, 0, 10_000).mark("pp::F stage=0 mb=0", 100, 100).mark("pp::B stage=0 mb=0", 300, 100)
    trace.kernel("a", 1_000, 50, launch_at=110).kernel("b", 1_100, 50, launch_at=190, thread=9)
    actions = table_set(trace).columns("actions", 0)
    assert (actions["device_start_ns"] - BASE).tolist() == [1_000, 300]
    assert (actions["device_end_ns"] - BASE).tolist() == [1_150, 400]


def test_our_marks_take_precedence_and_missing_micro_batches_are_counted() -> None:
    both = Trace(device="cpu").mark("pp::F stage=2 mb=1", 0, 10).mark("PP:2F1", 1, 8)
    assert table_set(both).columns("actions", 0)["source"].tolist() == ["mark"]
    counted = Trace(device="cpu").step(1, 0, 100).step(2, 100, 100)
    for at in (0, 20, 100):
        counted.mark("forward_step", at, 10)
    assert table_set(counted).columns("actions", 0)["micro_batch"].tolist() == [0, 1, 0]
