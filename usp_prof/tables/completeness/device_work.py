"""Completeness of device work: launches without work, work without launches, and missing ops.

CUDA and ROCm record device work for every launch and every copy, so a launch without work is lost work. Exceptions are
memsets (many traces lack them), launches during graph capture, and host functions. Kineto synchronizes the device
before it stops, so work at the end of the trace is no exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import EMPTY, Intervals, union
from usp_prof.columns.rows import rows_of
from usp_prof.model.health import Severity
from usp_prof.tables.communication.posts import around, ranges_of
from usp_prof.tables.events.classification import KINDS, WorkKind
from usp_prof.tables.events.devices import device_kind
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame
from usp_prof.tables.events.host_calls import LOST_COMMUNICATION, LOST_COMPUTE, LOST_COPY, LOST_KINDS, kind_of
from usp_prof.tables.events.links import Links

NOTABLE = 0.01
"""Share of missing events above which a gap is an error; measured figures are off by about the same share."""
PROMISING_DEVICES = ("cuda", "rocm")
_PROMISING_KINDS = ("launch", "graph_launch", "memcpy")
_HOST_FUNCTION = re.compile(r"HostFunc", re.IGNORECASE)
_COMMUNICATES = re.compile(r"^(nccl:|record_param_comms$)")
"""Ranges around the launch of a communication kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """Host calls that promise device work, by index in `Links.calls`."""

    kind: Ints
    """Index in `LOST_KINDS` of the work that each call promises; 0 for none."""
    is_lost: Flags
    """Whether the promised work is missing in the trace."""

    @property
    def is_behind(self) -> Flags:
        """Mark lost work of calls after the last one with recorded work, where the device record ends early."""
        has_work = np.flatnonzero((self.kind > 0) & ~self.is_lost)
        last = int(has_work[-1]) if len(has_work) else len(self.kind)
        return np.asarray(self.is_lost & (np.arange(len(self.kind)) > last), bool)

    @property
    def lost_kind(self) -> Ints:
        """Return the index in `LOST_KINDS` of the work that each call lost; 0 for none."""
        return np.where(self.is_lost, self.kind, 0)


def promises(frame: EventFrame, links: Links) -> Promises:
    """Return the calls that promise device work, and mark those whose work is missing in the trace."""
    calls = links.calls
    nothing = Promises(np.zeros(len(calls), np.int64), np.zeros(len(calls), bool))
    correlation_of_work = frame.ints("correlation", links.work)
    if not (correlation_of_work > 0).any() or device_kind(frame) not in PROMISING_DEVICES:
        return nothing
    correlation = frame.ints("correlation", calls)
    kind = frame.by_name(calls, _promised_kind, np.int64)
    kind[(correlation <= 0) | _captured(frame, calls).holds(frame.start[calls])] = 0
    kind[(kind == LOST_KINDS.index(LOST_COMPUTE)) & _communicates(frame, links)] = LOST_KINDS.index(LOST_COMMUNICATION)
    return Promises(kind, (kind > 0) & (rows_of(correlation_of_work, correlation) < 0))


def _promised_kind(name: str) -> int:
    kind = kind_of(name)
    if kind not in _PROMISING_KINDS or _HOST_FUNCTION.search(name):
        return 0
    return LOST_KINDS.index(LOST_COPY if kind == "memcpy" else LOST_COMPUTE)


def _captured(frame: EventFrame, calls: Ints) -> Intervals:
    """Return the intervals of graph capture, whose launches run later or never."""
    begins, ends = (_starts(frame, calls, word) for word in ("StreamBeginCapture", "StreamEndCapture"))
    if not len(begins):
        return EMPTY
    next_end = np.searchsorted(ends, begins)
    return union(begins, np.append(ends, np.iinfo(np.int64).max)[next_end])


def _starts(frame: EventFrame, calls: Ints, word: str) -> Ints:
    return np.sort(frame.start[calls[frame.by_name(calls, lambda name: word in name)]])


def _communicates(frame: EventFrame, links: Links) -> Flags:
    """Mark calls inside the range of a collective or, without ops, calls whose function launches communication."""
    calls = links.calls
    ranges = ranges_of(frame, (*HOST_OPS, *MARKS), lambda name: _COMMUNICATES.match(name) is not None)
    inside = around(frame, ranges, frame.track[calls], frame.start[calls]) >= 0
    if len(frame.rows(*HOST_OPS)):
        return inside
    code, names = frame.codes("name")
    linked = links.call >= 0
    function = code[links.call[linked]]
    is_communication = links.kind[linked] == KINDS.index(WorkKind.COMMUNICATION)
    launched, launched_communication = (
        np.bincount(functions, minlength=len(names) + 1) for functions in (function, function[is_communication])
    )
    return np.asarray(inside | (2 * launched_communication > launched)[code[calls]], bool)


Row = tuple[str, Severity, int, str]
"""Code, severity, count and detail of a health row."""


def rows(frame: EventFrame, links: Links, promises: Promises) -> Iterator[Row]:
    """Yield a health row for each kind of gap between host calls, device work and ops."""
    yield from _lost_work(frame, links, promises)
    yield from _lost_ops(frame, links)
    yield unlinked(frame, links)


def _lost_work(frame: EventFrame, links: Links, promises: Promises) -> Iterator[Row]:
    if not promises.is_lost.any():
        return
    at, is_behind = frame.start[links.calls], promises.is_behind
    lacking_ms = np.ptp(at[is_behind]) / 1e6 if is_behind.any() else 0.0
    promised_of_kind = np.bincount(promises.kind, minlength=len(LOST_KINDS))
    promised_of_kind[0] = 0
    for code, chosen, where in (
        ("device_ends_early", is_behind, f", all in the last {lacking_ms:.1f} ms of launching,"),
        ("lost_device_work", promises.is_lost & ~is_behind, ""),
    ):
        lost_of_kind = np.bincount(promises.kind[chosen], minlength=len(LOST_KINDS))
        missing = int(lost_of_kind.sum())
        # Losing half of the communication is severe, even if it is a small share of all launches.
        is_notable = bool((lost_of_kind > NOTABLE * promised_of_kind).any())
        kinds = ", ".join(
            f"{name} {share(lost, promised)}"
            for name, lost, promised in zip(LOST_KINDS, lost_of_kind.tolist(), promised_of_kind.tolist(), strict=True)
            if lost
        )
        detail = (
            f"{share(missing, int(promised_of_kind.sum()))} of launches and copies{where} have no device work "
            f"({kinds}); time in which it may have run is shown as not recorded"
        )
        yield code, Severity.ERROR if is_notable else Severity.INFO, missing, detail


def severity(missing: int, total: int) -> Severity:
    """Return ERROR above the notable share, else INFO."""
    return Severity.ERROR if missing > NOTABLE * total else Severity.INFO


def share(part: int, total: int) -> str:
    """Format a share as a percentage."""
    return f"{100 * part / max(total, 1):.1f}%"


def unlinked(frame: EventFrame, links: Links) -> Row:
    """Count device work without a launch; it is an error if most other work in the trace has launches."""
    missing = int((links.call < 0).sum()) - int(links.before_window.sum()) - int(links.ambiguous.sum())
    linked = int((links.call >= 0).sum())
    is_doubtful = device_kind(frame) in PROMISING_DEVICES and linked > missing
    detail = "device work whose launch is not in the trace; it counts, but its host call is unknown"
    level = severity(missing, linked + missing) if is_doubtful else Severity.INFO
    size = f"{share(missing, linked + missing)}: " if is_doubtful else ""
    return "unlinked_kernels", level, missing, size + detail


def _lost_ops(frame: EventFrame, links: Links) -> Iterator[Row]:
    """Count launches outside all ops whose kernels are launched by ops elsewhere, so the op tree is incomplete."""
    linked = (links.call >= 0) & (links.kind != KINDS.index(WorkKind.MEMCPY))
    work, call, has_op = links.work[linked], links.call[linked], links.op[linked] >= 0
    code, names = frame.codes("name")
    launched, without_op = (np.bincount(code[some], minlength=len(names) + 1) for some in (work, work[~has_op]))
    # By kernel name: whether ops launch it most of the time.
    is_of_op = (2 * without_op < launched)[code[work]]
    calls = call[~has_op & is_of_op]
    missing, n_linked = int(_between_ops(frame, calls).sum()), int(linked.sum())
    if severity(missing, n_linked) is Severity.ERROR:
        detail = (
            f"{share(missing, n_linked)} of kernels were launched outside of ops, although ops launch the same kernels "
            "elsewhere: ops are missing, so figures by op do not include these kernels"
        )
        yield "ops_incomplete", Severity.ERROR, missing, detail


_RESOLUTION_NS = 1_000
"""Old traces have microsecond resolution, so a launch may seem to start when its op ends."""


def _between_ops(frame: EventFrame, calls: Ints) -> Flags:
    """Mark calls outside all ops, between the first and the last op of their thread.

    Before the first op and after the last one, recording started or stopped inside the op.
    """
    ops = frame.rows(*HOST_OPS)
    if not len(ops) or not len(calls):
        return np.zeros(len(calls), bool)
    # One number per call that sorts by thread, then by time.
    low = min(int(frame.start[ops].min()), int(frame.start[calls].min()))
    width = max(int(frame.end[ops].max()), int(frame.start[calls].max())) - low + 2 * _RESOLUTION_NS
    starts, ends, at = (
        frame.track[rows] * width + when[rows] - low
        for rows, when in ((ops, frame.start), (ops, frame.end), (calls, frame.start))
    )
    starts, ends = np.sort(starts), np.sort(ends)
    before, after = np.searchsorted(ends, at, side="right") - 1, np.searchsorted(starts, at)
    thread = at // width
    has_before = (before >= 0) & (ends[before] // width == thread) & (at - ends[before] > _RESOLUTION_NS)
    has_after = (after < len(starts)) & (starts[np.minimum(after, len(starts) - 1)] // width == thread)
    return np.asarray(has_before & has_after, bool)
