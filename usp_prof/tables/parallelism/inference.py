"""Inference: the axis of communication without a name, from its content. If two axes fit, the axis stays unknown.

`docs/reference/axes.md` lists for each inference the evidence that it needs and the counter-example that it refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes, rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import Axis, AxisSource, Group
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.pipeline.traffic import Transfers, transfers_of


@dataclass(frozen=True, slots=True)
class Inferred:
    """An axis and the reason; unknown without a reason if there is no evidence."""

    axis: Axis = Axis.UNKNOWN
    reason: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Common properties of the parts of one kind."""

    op: str
    phase: str
    shape: str
    bytes: int
    """-1: unknown."""
    posted: bool
    """Whether the host post is known; it is not for work launched before the window."""

    @property
    def late(self) -> bool:
        """Whether it was posted in the backward pass or around the optimizer."""
        return self.phase in {"backward", "optimizer"}


@dataclass(slots=True)
class Traffic:
    """Communication of one group, over all ranks."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    """Steps with such traffic, over all ranks."""
    transfers: Transfers = field(default_factory=Transfers)

    @property
    def marked(self) -> str:
        """The axis that marks name for at least half of the parts; empty without one."""
        if not self.marks:
            return ""
        axis, count = self.marks.most_common(1)[0]
        return axis if 2 * count >= self.kinds.total() else ""

    def add(self, other: Traffic) -> None:
        """Add the traffic of another group."""
        self.kinds.update(other.kinds)
        self.marks.update(other.marks)
        self.steps += other.steps
        self.transfers = self.transfers.combined(other.transfers)


def traffic_of(ranks: Mapping[int, Columns]) -> dict[str, Traffic]:
    """Return the traffic of every group by its key; the empty key is for traffic without a group."""
    traffic_of_group: dict[str, Traffic] = {}
    for columns in ranks.values():
        if not len(columns):
            continue
        texts = [columns.codes(name) for name in ("group", "op", "phase", "shape", "axis", "axis_source")]
        is_posted = (columns["op_event"] >= 0) | (columns["phase"] != "")
        size = columns["in_bytes"]
        # Parts with equal values are counted together.
        kind_code = group_codes(*(codes for codes, _ in texts), size, is_posted.astype(np.int64))
        counts = np.bincount(kind_code).tolist()
        for row, count in zip(first_rows(kind_code).tolist(), counts, strict=True):
            key, op, phase, shape, axis, source = (values[codes[row]] for codes, values in texts)
            traffic = traffic_of_group.setdefault(key, Traffic())
            traffic.kinds[Kind(op, phase, shape, int(size[row]), bool(is_posted[row]))] += count
            if source == AxisSource.MARK:
                traffic.marks[axis] += count
        group, keys = texts[0]
        # One entry per step of each group.
        group_of_step = group[first_rows(group_codes(group, columns["step"]))]
        for code, steps in enumerate(np.bincount(group_of_step, minlength=len(keys)).tolist()):
            if steps:
                traffic_of_group[keys[code]].steps += steps
        transfer_rows = np.flatnonzero(columns.matches("op", *P2P))
        for code, places in rows_by_code(group[transfer_rows]).items():
            traffic = traffic_of_group[keys[code]]
            traffic.transfers = traffic.transfers.combined(transfers_of(columns.take(transfer_rows[places])))
    return traffic_of_group


def infer_axes(traffic: Mapping[str, Traffic], groups: Iterable[Group]) -> dict[str, Inferred]:
    """Infer the axis of each group's traffic; groups with the same layout and traffic are judged together.

    The groups 0-7 and 8-15 serve one axis: evidence from one of them holds for both.
    """
    ranks = {group.key: group.ranks for group in groups}
    keys_by_evidence: dict[object, list[str]] = {}
    for key, own in traffic.items():
        own_ranks = ranks.get(key, ())
        layout = tuple(rank - own_ranks[0] for rank in own_ranks) or key
        keys_by_evidence.setdefault((layout, frozenset(kind.op for kind in own.kinds)), []).append(key)
    by_name = {}
    for keys in keys_by_evidence.values():
        members = [rank for key in keys for rank in ranks.get(key, ())]
        are_distinct = len(members) == len(set(members))  # several groups of the same ranks may serve different axes
        for together in [keys] if are_distinct else [[key] for key in keys]:
            pooled = Traffic()
            for key in together:
                pooled.add(traffic[key])
            by_name.update(dict.fromkeys(together, infer(pooled)))
    return by_name


def infer(traffic: Traffic) -> Inferred:
    """Infer the axis of a group from its traffic."""
    judged = (_pipeline(traffic), _gradients(traffic), _activations(traffic))
    fitting = [axis for axis in judged if axis.reason]
    return fitting[0] if len(fitting) == 1 else Inferred()


def axis_of_library(library: str) -> Inferred:
    """Return the axis of a library's kernels, independent of their content."""
    return _MADE_FOR.get(library, Inferred())


def axis_of_operation(axis: str, op: str, *, everyone: bool) -> str:
    """Return traffic of one inferred group separately if it may serve another axis than the group's other operations.

    With a pipeline's sends, the collectives of the job's group are for the whole job (a loss to log, a norm).
    """
    if axis == Axis.WORLD and op in P2P:
        return Axis.UNKNOWN.value
    if op in _SERVES.get(Axis(axis), (op,)):
        return axis
    return Axis.WORLD.value if axis == Axis.PP and everyone else Axis.UNKNOWN.value


def _pipeline(traffic: Traffic) -> Inferred:
    if not traffic.transfers.pipeline:
        return Inferred()
    return Inferred(Axis.PP, "sends run ahead of the receives from the same peer, as micro-batches in a pipeline do")


def _gradients(traffic: Traffic) -> Inferred:
    """Infer data parallelism: gradients are reduced in the backward pass or around the optimizer, never in forward.

    Scalars (a norm, a loss) are no evidence. One reduction per step next to sends may be that of tied embeddings.
    """
    reductions = {kind: n for kind, n in traffic.kinds.items() if kind.op in _REDUCTIONS and kind.posted}
    large = {kind: n for kind, n in reductions.items() if kind.bytes < 0 or kind.bytes >= _SCALARS}
    n_reductions = sum(n for kind, n in traffic.kinds.items() if kind.op in _REDUCTIONS)
    once = sum(large.values()) <= traffic.steps
    sends = any(kind.op in P2P for kind in traffic.kinds)
    if not large or 3 * sum(reductions.values()) < 2 * n_reductions or (once and sends):
        return Inferred()
    late = {kind: n for kind, n in large.items() if kind.late}
    if _weight(late) < _NEARLY_ALL * _weight(large):
        return Inferred()
    return Inferred(Axis.DP, "its reductions are posted in the backward pass or around the optimizer, none in forward")


def _activations(traffic: Traffic) -> Inferred:
    """Infer tensor parallelism: activations are reduced many times per step, with equal sizes in forward and backward.

    Statistics (batch norm, the balance of experts) are small; gradients are not reduced in forward.
    """
    reductions = {
        kind: n
        for kind, n in traffic.kinds.items()
        if kind.op in _REDUCTIONS and kind.posted and kind.bytes >= _SCALARS
    }
    in_backward = {(kind.op, kind.bytes) for kind in reductions if kind.phase == "backward"}
    in_forward = {(kind.op, kind.bytes) for kind in reductions if not kind.late}
    in_both_passes = in_backward & in_forward
    shared = {
        kind: n
        for kind, n in reductions.items()
        if (kind.op, kind.bytes) in in_both_passes and kind.bytes >= _ACTIVATIONS
    }
    often = sum(shared.values()) >= _OFTEN * max(traffic.steps, 1)
    if not often or _weight(shared) < _MOST * _weight(reductions):
        return Inferred()
    return Inferred(Axis.TP, "the same sizes are reduced in forward and in backward, many times per step")


def _weight(kinds: Mapping[Kind, int]) -> int:
    """Sum bytes; if a size is unknown, count instead."""
    if any(kind.bytes < 0 for kind in kinds):
        return sum(kinds.values())
    return sum(kind.bytes * count for kind, count in kinds.items())


_MADE_FOR = {
    "deepep": Inferred(Axis.EP, "DeepEP's kernels exchange the tokens of experts"),
    "mori": Inferred(Axis.EP, "MORI's kernels exchange the tokens of experts"),
    "userbuffers": Inferred(Axis.TP, "Transformer Engine's user buffers overlap tensor-parallel communication"),
    "custom_all_reduce": Inferred(
        Axis.TP, "inference engines use these all-reduce kernels for tensor parallelism alone"
    ),
}
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_SERVES = {
    Axis.DP: ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier", "other"),
    Axis.TP: ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "other"),
    Axis.PP: P2P,
}
_SCALARS = 4096
"""Bytes below which a message is a norm, a loss or a flag."""
_ACTIVATIONS = 64 << 10
"""Bytes above which a tensor reduced in forward is an activation, not a statistic."""
_OFTEN = 8
_NEARLY_ALL = 0.95
_MOST = 0.8


# Axis health: rows with inferred axes and their reasons, and communication without an axis.

_HINT = "name groups (group_desc) to make it exact"


def axis_health(
    groups: Iterable[Group], traffic: Mapping[str, Traffic], parts: Mapping[int, Columns], ungrouped: Inferred
) -> list[HealthRow]:
    """Return one row per reason of inferred axes, and one for communication without an axis."""
    used = [group for group in groups if group.key in traffic]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for group in used:
        if group.axis_source == AxisSource.INFERRED:
            by_reason.setdefault((str(group.axis), group.axis_reason), []).append(group.key)
    rows = [
        _inferred_row(f"the axis of {_few(keys)} is inferred to be {axis}: {reason}", len(keys))
        for (axis, reason), keys in sorted(by_reason.items())
    ]
    libraries = sorted({name for columns in parts.values() for name in set(columns["library"].tolist())})
    purposes = [(library, axis_of_library(library)) for library in libraries]
    rows += [
        _inferred_row(f"the axis of {library} is inferred to be {purpose.axis}: {purpose.reason}", 1)
        for library, purpose in purposes
        if purpose.reason
    ]
    if ungrouped.reason:
        subject = "communication without a group"
        rows.append(_inferred_row(f"the axis of {subject} is inferred to be {ungrouped.axis}: {ungrouped.reason}", 1))
    unknown = [group.key for group in used if group.axis == Axis.UNKNOWN]
    if unknown:
        detail = f"the axis of {_few(unknown)} is unknown; their communication is shown as axis unknown; {_HINT}"
        rows.append(HealthRow("axis_unknown", Severity.ERROR, count=len(unknown), detail=detail))
    return rows


def _inferred_row(detail: str, count: int) -> HealthRow:
    return HealthRow("axis_inferred", Severity.INFO, count=count, detail=f"{detail}; {_HINT}")


def _few(keys: list[str]) -> str:
    """List the first groups, with long lists of ranks shortened."""
    short = [key if len(key) <= 40 else f"{key[:30]}...{key.rsplit(',', 1)[-1]}" for key in keys[:4]]
    return ", ".join(short) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
