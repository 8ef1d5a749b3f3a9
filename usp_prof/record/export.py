"""Export: write one rank's trace to disk as Kineto wrote it, with group data added, compressed and atomically.

A gloo trace gets the same data on its collectives as an NCCL trace. The arguments have the same names as those of
NCCL's kernels, so readers need no special case. No event is added, removed or moved, and existing arguments do not
change.
"""

from __future__ import annotations

import json
import re
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from usp_prof.contract import AREAS, TRACE_METADATA_KEY, GroupEntry, Manifest, format_mark, parse_mark
from usp_prof.record.join import Call, FlightEntry, elements, family, join, recorded_entries
from usp_prof.record.marks import Notes
from usp_prof.record.trace_text import ENCODING, TextEvent, base_ns, edited, find_events, with_events, with_metadata
from usp_prof.whole_files import whole_gzip_file

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the join: share of gloo collectives whose group was restored, and problems found."""

    join_rate: float
    note: str = ""
    empty_steps: Sequence[int] = ()
    """Recorded steps in which nothing ran."""


def trace_name(rank: int) -> str:
    """Return the file name of a rank's trace."""
    return f"rank{rank}.json.gz"


def metadata(manifest: Manifest) -> tuple[str, str]:
    """Return the metadata to set before a profiler starts: Kineto silently drops later additions."""
    return TRACE_METADATA_KEY, _text(manifest)


def export(
    profiler: torch.profiler.profile,
    path: Path,
    manifest: Manifest,
    groups: list[GroupEntry],
    rank: int,
    *,
    cut_steps: Iterable[int] = (),
    notes: Notes | None = None,
) -> Outcome:
    """Write the recorded window to `path`: either the whole trace or, on an error, nothing.

    A step interrupted by an error keeps its events, but its mark is renamed to ``train::cut step=N``, because it is not
    a complete step. So is one in which nothing ran, as when a loop is left by a `break` at the start of a step. `notes`
    are the steps and marks of light mode, which the profiler does not record.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent) as folder:
        raw = Path(folder) / "raw.json"
        profiler.export_chrome_trace(str(raw))
        text = raw.read_text(ENCODING)
    if notes is not None:
        text = with_events(text, notes.events(base_ns(text)))
    text = _without_steps(text, cut_steps)
    empty = [] if notes is not None else empty_steps(text)  # a light recording has no ops of the host
    text = _without_steps(text, empty)
    pieces, outcome = _with_collectives(text, groups, rank)
    manifest.join_rate = {str(rank): outcome.join_rate}
    head, *rest = pieces
    with whole_gzip_file(path) as file:
        for piece in (with_metadata(head, TRACE_METADATA_KEY, _text(manifest)), *rest):
            file.write(piece.encode(ENCODING))
    return replace(outcome, empty_steps=empty)


def _without_steps(text: str, steps: Iterable[int]) -> str:
    for step in steps:
        text = text.replace(f'"{_STEP}{step}"', f'"{format_mark("train", "cut", step=step)}"')
    return text


_STEP = "ProfilerStep#"
_SHORT_NS = 1_000_000
_OP = re.compile(r'"cat": "(?:cpu_op|kernel|gpu_mem|cuda_)[^{}]*?"ts": ([\d.]+)')


def empty_steps(text: str) -> list[int]:
    """Return the steps in which no op started; only short steps are checked, because reading all ops takes long."""
    steps = find_events(text, [_STEP])
    limit_ns = max(_SHORT_NS, max((step.duration_ns for step in steps), default=0) // 10)
    short = [step for step in steps if step.duration_ns < limit_ns]
    if not short:
        return []
    base = base_ns(text)
    starts = sorted(base + round(float(match[1]) * 1000) for match in _OP.finditer(text))
    return [
        int(step.name.removeprefix(_STEP))
        for step in short
        if bisect_left(starts, step.start_ns) == bisect_right(starts, step.end_ns)
    ]


def _with_collectives(text: str, groups: list[GroupEntry], rank: int) -> tuple[Iterable[str], Outcome]:
    try:
        entries = recorded_entries()
        enriched = enrich(text, entries or [], groups, rank)
    except Exception as error:  # noqa: BLE001 - a heuristic over private formats; the plain trace is worth keeping
        return [text], Outcome(0.0, f"the join of groups failed, the trace is as Kineto wrote it: {error!r}")
    lost = enriched.collectives - enriched.recognized
    if not lost:
        return enriched.pieces, Outcome(enriched.rate)
    lost_text = f"{lost} of {enriched.collectives} gloo collectives have no group and count to no axis"
    return enriched.pieces, Outcome(enriched.rate, f"{lost_text}: {_reason(entries)}")


def _reason(entries: list[FlightEntry] | None) -> str:
    if entries is None:
        return "this torch has no flight recorder"
    if not entries:
        return "call usp_prof.record.prepare() before init_process_group (it sets TORCH_FR_BUFFER_SIZE)"
    return "they match no entry of the flight recorder; if its ring was too short, raise prepare(entries=...)"


def _text(manifest: Manifest) -> str:
    return json.dumps(manifest.to_dict())


_GLOO, _C10D = "gloo:", "c10d::"
GLOO_SEND = "gloo:send"
_TRANSFERS = (GLOO_SEND, "gloo:recv", "gloo:recvAnySource")
_NO_SIZES = "[]"
"""The list of sizes of an all-to-all with equal parts."""


@dataclass(frozen=True, slots=True)
class Enriched:
    """Trace text with added arguments, in pieces, and the number of recognized collectives."""

    pieces: Iterator[str]
    collectives: int
    recognized: int

    @property
    def rate(self) -> float:
        """Share of the collectives whose group was restored; 1 if there are none to restore."""
        return self.recognized / self.collectives if self.collectives else 1.0


def enrich(text: str, entries: Sequence[FlightEntry], groups: Sequence[GroupEntry], rank: int) -> Enriched:
    """Assign each gloo event its group, sequence number, sizes and dtype, and each transfer its peer if known."""
    events = find_events(text, (_GLOO,))
    collectives = [event for event in events if event.name not in _TRANSFERS]
    if not events:
        return Enriched(iter((text,)), 0, 0)
    operators = find_events(text, (_C10D,))
    by_name = {group.name: group for group in groups}
    call_of_event = join(collectives, operators, entries, list(by_name))
    transfers = [event for event in events if event.name in _TRANSFERS]
    marks = find_events(text, [f"{area}::" for area in AREAS])
    arguments_of_transfer = peers(transfers, operators, marks, groups, rank)
    changed: list[TextEvent] = []
    additions: dict[int, dict[str, Any]] = {}
    for place, collective in call_of_event.items():
        additions[len(changed)] = collective_arguments(collective, by_name.get(collective.entry.group))
        changed.append(collectives[place])
    for place, arguments in arguments_of_transfer.items():
        additions[len(changed)] = arguments
        changed.append(transfers[place])
    return Enriched(edited(text, additions, changed), len(collectives), len(call_of_event))


def collective_arguments(call: Call, group: GroupEntry | None) -> dict[str, Any]:
    """Return the arguments of a collective, as on NCCL's kernels."""
    entry, operator = call.entry, call.operator
    name = operator.name.removeprefix(_C10D).removesuffix("_")
    in_elements, out_elements = entry.in_elements, entry.out_elements
    kind = family(operator.name)
    if kind == "reducescatter":
        out_elements = _elements(operator, 0) or out_elements
        in_elements = _elements(operator, 1) or in_elements
    if kind == "alltoall":
        inputs = operator.args.get("Concrete Inputs", ())
        has_sizes = any(str(value).startswith("[") and value != _NO_SIZES for value in inputs)
        name = "all_to_allv" if has_sizes else "all_to_all"
    arguments: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": in_elements,
        "Out msg nelems": out_elements,
        "Seq": entry.sequence,
    }
    if entry.dtype:
        arguments["dtype"] = entry.dtype
    if group is not None:
        return arguments | group_arguments(group)
    return arguments | {"Process Group Name": entry.group, "Process Group Description": entry.description}


def _elements(operator: TextEvent, place: int) -> int:
    """Return the number of elements of an operator's argument, a tensor or a list of tensors."""
    dims = operator.args.get("Input Dims", ())
    if place >= len(dims) or not dims[place]:
        return 0
    shape = dims[place]
    return elements(shape if isinstance(shape[0], list) else [shape])


# Peers of gloo's sends and receives. The operator has the peer's rank within a group. The mark around it identifies the
# axis, and so the group.

_SENDS, _RECEIVES = "c10d::send", "c10d::recv_"
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
"""Names of dtypes in the profiler, and in NCCL's arguments."""
_PEER_ARGUMENT = 2
"""Index of the peer among the operator's arguments: tensors, group, peer, tag."""


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
    """Return the peer arguments by index in `transfers`: the global peer, and the group if only one fits."""
    callers = _callers(operators)
    arguments: dict[int, dict[str, Any]] = {}
    for place, transfer in enumerate(transfers):
        arguments[place] = size_arguments(transfer)
        caller = _caller(transfer, callers)
        if caller is None:
            continue
        candidates = [
            group
            for group in _groups_on_axis(caller.operator, marks, groups)
            if caller.peer_in_group < len(group.ranks)
        ]
        # If several groups fit, the peer is known only if they agree on it.
        global_peers = {group.ranks[caller.peer_in_group] for group in candidates} - {rank}
        if len(global_peers) != 1:
            continue
        peer = global_peers.pop()
        sends = caller.operator.name == _SENDS
        arguments[place] |= {"Src Rank": rank if sends else peer, "Dst Rank": peer if sends else rank}
        if len(candidates) == 1:
            arguments[place] |= group_arguments(candidates[0])
    return arguments


def size_arguments(transfer: TextEvent) -> dict[str, Any]:
    """Return a transfer's name, size and dtype, as on NCCL's kernels."""
    arguments: dict[str, Any] = {"Collective name": "send" if transfer.name == GLOO_SEND else "recv"}
    count = elements(transfer.args.get("Input Dims", ()))
    if count:
        arguments |= {"In msg nelems": count, "Out msg nelems": count}
    dtypes = [_DTYPES[name] for name in transfer.args.get("Input type", ()) if name in _DTYPES]
    return arguments | ({"dtype": dtypes[0]} if dtypes else {})


def group_arguments(group: GroupEntry) -> dict[str, Any]:
    """Return the arguments of a group, as on NCCL's kernels."""
    return {
        "Group size": len(group.ranks),
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
    }


def _callers(operators: Sequence[TextEvent]) -> dict[int, list[_Caller]]:
    callers: dict[int, list[_Caller]] = {}
    for operator in sorted(operators, key=lambda event: event.start_ns):
        inputs = operator.args.get("Concrete Inputs", ())
        if operator.name in {_SENDS, _RECEIVES} and len(inputs) > _PEER_ARGUMENT and inputs[_PEER_ARGUMENT].isdigit():
            callers.setdefault(operator.thread, []).append(_Caller(operator, int(inputs[_PEER_ARGUMENT])))
    return callers


def _caller(transfer: TextEvent, callers: dict[int, list[_Caller]]) -> _Caller | None:
    """Return the operator within which a transfer started, on the same thread (gloo posts from the caller's thread)."""
    of_thread = callers.get(transfer.thread, [])
    last = bisect_right([caller.operator.start_ns for caller in of_thread], transfer.start_ns)
    if last and transfer.start_ns <= of_thread[last - 1].operator.end_ns:
        return of_thread[last - 1]
    return None


def _groups_on_axis(
    operator: TextEvent, marks: Sequence[TextEvent], groups: Sequence[GroupEntry]
) -> Sequence[GroupEntry]:
    """Return the groups on the axis of the innermost mark around the operator; all groups if there is no such mark."""
    around = [
        mark
        for mark in marks
        if mark.thread == operator.thread and mark.start_ns <= operator.start_ns and operator.end_ns <= mark.end_ns
    ]
    for mark in sorted(around, key=lambda event: event.start_ns, reverse=True):
        parsed = parse_mark(mark.name)
        axis = parsed.area if parsed is not None else ""
        on_axis = [group for group in groups if any(name == axis or name.startswith(f"{axis}_") for name in group.axes)]
        if on_axis:
            return on_axis
    return groups
