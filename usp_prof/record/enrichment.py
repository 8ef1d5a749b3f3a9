"""What is added to a gloo trace so that it tells of its collectives what an NCCL trace tells?

The arguments are those of NCCL's kernels, by the same names, so whatever reads the one reads the other. No event is
added, removed or moved, and no argument that was there changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from usp_prof.contract import AREAS
from usp_prof.record.flight import elements
from usp_prof.record.join import Joined, family, join
from usp_prof.record.peers import GLOO_SEND, group_arguments, peers
from usp_prof.record.trace_text import TextEvent, edited, find_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from usp_prof.contract import GroupEntry
    from usp_prof.record.flight import FlightEntry

_GLOO, _C10D = "gloo:", "c10d::"
_TRANSFERS = (GLOO_SEND, "gloo:recv", "gloo:recvAnySource")
_UNEVEN = "[]"


@dataclass(frozen=True, slots=True)
class Enriched:
    """The text with what was added, in pieces, and how many of its collectives were recognised."""

    pieces: Iterator[str]
    collectives: int
    recognised: int

    @property
    def rate(self) -> float:
        """Share of the collectives whose group was restored; 1 where there was nothing to restore."""
        return self.recognised / self.collectives if self.collectives else 1.0


def enrich(text: str, entries: Sequence[FlightEntry], groups: Sequence[GroupEntry], rank: int) -> Enriched:
    """Tell each gloo event its group, sequence number, sizes and dtype, and each transfer its peer where known."""
    events = find_events(text, (_GLOO,))
    collectives = [event for event in events if event.name not in _TRANSFERS]
    if not events:
        return Enriched(iter((text,)), 0, 0)
    operators = find_events(text, (_C10D,))
    by_name = {group.name: group for group in groups}
    joined = join(collectives, operators, entries, list(by_name))
    transfers = [event for event in events if event.name in _TRANSFERS]
    marks = find_events(text, [f"{area}::" for area in AREAS])
    met = peers(transfers, operators, marks, groups, rank)
    changed: list[TextEvent] = []
    additions: dict[int, dict[str, Any]] = {}
    for place, found in joined.items():
        additions[len(changed)] = collective_arguments(found, by_name.get(found.entry.group))
        changed.append(collectives[place])
    for place, arguments in met.items():
        additions[len(changed)] = arguments
        changed.append(transfers[place])
    return Enriched(edited(text, additions, changed), len(collectives), len(joined))


def collective_arguments(found: Joined, group: GroupEntry | None) -> dict[str, Any]:
    """Give a collective as NCCL's kernels carry it."""
    entry, operator = found.entry, found.operator
    name = operator.name.removeprefix(_C10D).removesuffix("_")
    inside, outside = entry.in_elements, entry.out_elements
    kind = family(operator.name)
    if kind == "reducescatter":
        outside = _elements(operator, 0) or outside
        inside = _elements(operator, 1) or inside
    if kind == "alltoall":
        inputs = operator.args.get("Concrete Inputs", ())
        name = "all_to_allv" if any(str(one).startswith("[") and one != _UNEVEN for one in inputs) else "all_to_all"
    arguments: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": inside,
        "Out msg nelems": outside,
        "Seq": entry.sequence,
    }
    if entry.dtype:
        arguments["dtype"] = entry.dtype
    if group is not None:
        return arguments | group_arguments(group)
    return arguments | {"Process Group Name": entry.group, "Process Group Description": entry.description}


def _elements(operator: TextEvent, place: int) -> int:
    """Count the elements of an operator's argument, a tensor or a list of tensors."""
    dims = operator.args.get("Input Dims", ())
    if place >= len(dims) or not dims[place]:
        return 0
    one = dims[place]
    return elements(one if isinstance(one[0], list) else [one])
