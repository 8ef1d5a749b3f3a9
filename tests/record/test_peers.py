from __future__ import annotations

from usp_prof.contract import GroupEntry
from usp_prof.record.export import peers
from usp_prof.record.trace_text import TextEvent

STAGES = GroupEntry("5", [1, 3, 5], ["pp"], "mesh_pp")
RING = GroupEntry("6", [0, 1], ["cp"], "mesh_cp")
WORLD = GroupEntry("0", list(range(8)), [], "default_pg")


def event(name: str, start: int, end: int, args: dict[str, object] | None = None, thread: int = 1) -> TextEvent:
    return TextEvent(0, 0, name, thread, start, end - start, args or {})


def send(start: int, peer: str) -> tuple[TextEvent, TextEvent]:
    shape = {"Input Dims": [[2, 3]], "Input type": ["c10::BFloat16"]}
    return (
        event("gloo:send", start + 1, start + 90, shape),
        event("c10d::send", start, start + 5, {"Concrete Inputs": ["", "", peer, "0"]}),
    )


def test_the_mark_names_the_group_and_the_operator_the_member() -> None:
    transfer, operator = send(100, "2")
    mark = event("pp::send_f stage=1 mb=0 peer=5", 90, 300)
    assert peers([transfer], [operator], [mark], [WORLD, STAGES, RING], rank=3) == {
        0: {
            "Collective name": "send",
            "In msg nelems": 6,
            "Out msg nelems": 6,
            "dtype": "BFloat16",
            "Src Rank": 3,
            "Dst Rank": 5,
            "Group size": 3,
            "Process Group Name": "5",
            "Process Group Description": "mesh_pp",
            "Process Group Ranks": "[1, 3, 5]",
        }
    }


def test_a_receive_comes_from_its_peer() -> None:
    transfer = event("gloo:recv", 101, 200)
    operator = event("c10d::recv_", 100, 105, {"Concrete Inputs": ["", "", "0", "0"]})
    mark = event("cp::ring_send_recv step=0", 90, 300)
    arguments = peers([transfer], [operator], [mark], [WORLD, RING], rank=1)[0]
    assert (arguments["Collective name"], arguments["Src Rank"], arguments["Dst Rank"]) == ("recv", 0, 1)


def test_the_innermost_mark_of_an_axis_with_a_group_decides() -> None:
    transfer, operator = send(100, "0")
    marks = [event("pp::F stage=0 mb=0", 0, 500), event("cp::ring_send_recv step=0", 90, 300)]
    assert peers([transfer], [operator], marks, [STAGES, RING], rank=1)[0]["Dst Rank"] == 0
    outer_only = [marks[0], event("train::forward", 95, 300), event("cp::ring_wait", 99, 300, thread=2)]
    assert peers([transfer], [operator], outer_only, [STAGES, RING], rank=3)[0]["Dst Rank"] == 1


def test_without_a_mark_only_facts_common_to_all_groups_are_added() -> None:
    transfer, operator = send(100, "1")
    arguments = peers([transfer], [operator], [], [WORLD, RING], rank=0)[0]
    assert arguments["Dst Rank"] == 1
    assert "Process Group Name" not in arguments
    assert "Dst Rank" not in peers([transfer], [operator], [], [WORLD, STAGES], rank=5)[0]


def test_a_transfer_outside_of_operators_has_no_peer() -> None:
    transfer, operator = send(100, "1")
    later, _ = send(400, "1")
    assert "Dst Rank" not in peers([later], [operator], [], [RING], rank=0)[0]
    assert "Dst Rank" not in peers([transfer], [send(100, "any")[1]], [], [RING], rank=0)[0]
    assert peers([event("gloo:recv", 0, 1)], [], [], [], rank=0) == {0: {"Collective name": "recv"}}
