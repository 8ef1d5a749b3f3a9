"""Peers: the rank with which a send or a receive on gloo talks.

The operator says the rank within a group, the mark around it says which axis, and so which group.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from usp_prof.contract import parse_mark
from usp_prof.record.join import elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.contract import GroupEntry
    from usp_prof.record.trace_text import TextEvent

_SENDS, _RECEIVES = "c10d::send", "c10d::recv_"
GLOO_SEND = "gloo:send"
_DTYPES = {
    "float": "Float",
    "double": "Double",
    "c10::BFloat16": "BFloat16",
    "c10::Half": "Half",
    "long int": "Long",
    "int": "Int",
    "unsigned char": "Byte",
    "bool": "Bool",
}
"""How the profiler and NCCL's arguments call the same dtypes."""
_PEER_ARGUMENT = 2
"""Place of the peer among the operator's arguments: tensors, group, peer, tag."""


@dataclass(frozen=True, slots=True)
class _Caller:
    operator: TextEvent
    peer_in_group: int


def peers(
    transfers: Sequence[TextEvent],
    operators: Sequence[TextEvent],
    marks: Sequence[TextEvent],
    groups: Sequence[GroupEntry],
    rank: int,
) -> dict[int, dict[str, Any]]:
    """Give, by place in `transfers`, what can be told of each: global peer, and the group where only one fits."""
    callers = _callers(operators)
    told: dict[int, dict[str, Any]] = {}
    for place, transfer in enumerate(transfers):
        told[place] = size_arguments(transfer)
        caller = _caller(transfer, callers)
        if caller is None:
            continue
        fitting = [one for one in _candidates(caller.operator, marks, groups) if caller.peer_in_group < len(one.ranks)]
        # Several groups may fit, as long as they agree on who the peer is.
        global_peers = {one.ranks[caller.peer_in_group] for one in fitting} - {rank}
        if len(global_peers) != 1:
            continue
        peer = global_peers.pop()
        sends = caller.operator.name == _SENDS
        told[place] |= {"Src Rank": rank if sends else peer, "Dst Rank": peer if sends else rank}
        if len(fitting) == 1:
            told[place] |= group_arguments(fitting[0])
    return told


def size_arguments(transfer: TextEvent) -> dict[str, Any]:
    """Give a transfer's name, size and dtype as NCCL's kernels carry them."""
    arguments: dict[str, Any] = {"Collective name": "send" if transfer.name == GLOO_SEND else "recv"}
    count = elements(transfer.args.get("Input Dims", ()))
    if count:
        arguments |= {"In msg nelems": count, "Out msg nelems": count}
    dtypes = [_DTYPES[name] for name in transfer.args.get("Input type", ()) if name in _DTYPES]
    return arguments | ({"dtype": dtypes[0]} if dtypes else {})


def group_arguments(group: GroupEntry) -> dict[str, Any]:
    """Give a group as NCCL's kernels carry it."""
    return {
        "Group size": len(group.ranks),
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
    }


def _callers(operators: Sequence[TextEvent]) -> dict[int, list[_Caller]]:
    callers: dict[int, list[_Caller]] = {}
    for operator in sorted(operators, key=lambda one: one.start_ns):
        inputs = operator.args.get("Concrete Inputs", ())
        if operator.name in {_SENDS, _RECEIVES} and len(inputs) > _PEER_ARGUMENT and inputs[_PEER_ARGUMENT].isdigit():
            callers.setdefault(operator.thread, []).append(_Caller(operator, int(inputs[_PEER_ARGUMENT])))
    return callers


def _caller(transfer: TextEvent, callers: dict[int, list[_Caller]]) -> _Caller | None:
    """Give the operator within which a transfer began, on the same thread (gloo posts where it is called)."""
    mine = callers.get(transfer.thread, [])
    last = bisect_right([one.operator.start_ns for one in mine], transfer.start_ns)
    if last and transfer.start_ns <= mine[last - 1].operator.end_ns:
        return mine[last - 1]
    return None


def _candidates(operator: TextEvent, marks: Sequence[TextEvent], groups: Sequence[GroupEntry]) -> Sequence[GroupEntry]:
    """Give the groups of the axis of the innermost mark around the operator; all groups where no mark says."""
    around = [
        mark
        for mark in marks
        if mark.thread == operator.thread and mark.start_ns <= operator.start_ns and operator.end_ns <= mark.end_ns
    ]
    for mark in sorted(around, key=lambda one: one.start_ns, reverse=True):
        parsed = parse_mark(mark.name)
        axis = parsed.area if parsed is not None else ""
        serving = [group for group in groups if any(name == axis or name.startswith(f"{axis}_") for name in group.axes)]
        if serving:
            return serving
    return groups
