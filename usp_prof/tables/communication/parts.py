"""Parts: the events that carry a rank's communication, before their groups and bytes are worked out.

GPU: each communication kernel. CPU: each gloo range, with the c10d op that posted it. Without either (a GPU job
recorded without GPU events): the host ranges of `record_param_comms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import array_of, numbers_of
from usp_prof.columns.rows import distinct, lookup
from usp_prof.tables.communication.arguments import said_of, texts
from usp_prof.tables.communication.peers import marked_transfers
from usp_prof.tables.communication.posts import around, operation_of, posts_of_gloo, ranges_of
from usp_prof.tables.events.classification import KINDS, Work, operation
from usp_prof.tables.events.frame import HOST_OPS, MARKS
from usp_prof.tables.events.streams import streams

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.tables.events.frame import EventFrame
    from usp_prof.tables.events.links import Links

    Ints = NDArray[np.int64]

RECORD = "record_param_comms"


class Carrier(StrEnum):
    """What carries the parts of a trace."""

    KERNELS = "kernels"
    GLOO = "gloo"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of the frame, by start: where each part runs, who posted it, what both say."""

    row: Ints
    """The event that carries the part; for host ranges the range."""
    carrier: Carrier
    post: Ints
    """The c10d op or record_param_comms; -1 when unknown."""
    posted_track: Ints
    """Thread that posted it, and when: marks around that moment tell what it was for."""
    posted_at: Ints
    said: pa.Table
    operation: NDArray[np.object_]
    library: NDArray[np.object_]

    def __len__(self) -> int:
        """Count the parts."""
        return len(self.row)

    @property
    def gloo(self) -> bool:
        """The parts are gloo's ranges."""
        return self.carrier is Carrier.GLOO

    @property
    def on_host(self) -> bool:
        """The parts are host ranges: no event of the communication itself is known."""
        return self.carrier is Carrier.HOST


def find_parts(frame: EventFrame, links: Links) -> Parts:
    """Find the parts of a trace."""
    communication = links.kind == KINDS.index(Work.COMMUNICATION)
    if communication.any():
        names = lookup(links.library.dictionary.to_pylist(), numbers_of(links.library.indices), missing="")
        return _from_kernels(frame, links, np.flatnonzero(communication), names[communication])
    gloo = ranges_of(frame, MARKS, lambda name: name.startswith("gloo:"))
    if len(gloo):
        return _from_gloo(frame, gloo)
    # With other device work at hand, host calls without a kernel moved nothing: groups of one rank, waits.
    return _from_host(frame, none=bool(len(links.work)))


def communicator_streams(frame: EventFrame, parts: Parts) -> Ints:
    """Give a number for the communicator that each kernel may belong to: its library and stream."""
    libraries, library = np.unique(parts.library.astype(str), return_inverse=True)
    return (streams(frame, parts.row) + 1) * (len(libraries) + 1) + library


def _from_kernels(frame: EventFrame, links: Links, chosen: Ints, library: NDArray[np.object_]) -> Parts:
    row, call = links.work[chosen], links.call[chosen]
    track = np.where(call >= 0, frame.track[call], -1)
    at = np.where(call >= 0, frame.start[call], frame.start[row])
    post = around(frame, ranges_of(frame, HOST_OPS, lambda name: name == RECORD), track, at)
    mark = around(frame, ranges_of(frame, MARKS, lambda name: name.startswith("nccl:")), track, at)
    c10d = around(frame, ranges_of(frame, HOST_OPS, lambda name: name.startswith("c10d::")), track, at)
    # A mark names the tensors themselves; the record around it only their list.
    said = said_of(frame, row, mark, post)
    said_names = texts(said, "name")
    told = np.array([operation(text) if text else "other" for text in said_names[1]] + ["other"], dtype=object)
    op = told[said_names[0]]
    kernel = frame.by_name(row, _operation_of_kernel, object)
    for other in (operation_of(frame, mark), operation_of(frame, c10d), kernel):
        op = np.where((op == "other") | ((op == "send_recv") & (other != "other")), other, op)
    marked, _ = marked_transfers(frame, track, at)
    op = np.where((op == "send_recv") & (marked != ""), marked, op)
    op = _alike(op, kernel, streams(frame, row))
    origin = np.where(post >= 0, post, c10d)
    return Parts(row, Carrier.KERNELS, origin, track, at, said, op, library)


def _alike(op: NDArray[np.object_], kernel: NDArray[np.object_], stream: Ints) -> NDArray[np.object_]:
    """Name the SendRecv kernels that nothing else tells of as the others of their stream, where those agree.

    NCCL carries out an all-to-all by the kernel of sends; what was launched before the window has no host call.
    """
    exchanges = kernel == "send_recv"
    for one in distinct(stream[exchanges & (op == "send_recv")]).tolist():
        here = exchanges & (stream == one)
        told = set(op[here].tolist()) - {"send_recv"}
        if len(told) == 1 and not told & {"send", "recv"}:
            op = np.where(here, told.pop(), op)
    return op


def _operation_of_kernel(name: str) -> str:
    return operation(name.split("(", maxsplit=1)[0] if name.startswith("nccl") else name)


def _from_gloo(frame: EventFrame, row: Ints) -> Parts:
    op = frame.by_name(row, lambda name: operation(name.removeprefix("gloo:")), object)
    post = posts_of_gloo(frame, row, op)
    said = said_of(frame, row, post)
    names = texts(said, "name")
    told = lookup([operation(text) if text else "other" for text in names[1]], names[0], missing="other")
    posted = operation_of(frame, post)
    op = np.where(told != "other", told, np.where(posted != "other", posted, op))
    origin = np.where(post >= 0, post, row)
    library = np.full(len(row), "gloo", dtype=object)
    return Parts(row, Carrier.GLOO, post, frame.track[origin], frame.start[origin], said, op, library)


def _from_host(frame: EventFrame, *, none: bool) -> Parts:
    post = ranges_of(frame, HOST_OPS, lambda name: name == RECORD)
    mark = ranges_of(frame, MARKS, lambda name: name.startswith("nccl:"))
    inner = around(frame, post, frame.track[mark], frame.start[mark])
    # A mark without a record around it stands for itself; a record with a mark inside takes the mark's name.
    marks_of_post = np.full(len(frame) + 1, -1, np.int64)
    marks_of_post[inner[inner >= 0]] = mark[inner >= 0]
    alone = mark[inner < 0]
    row = np.concatenate([post, alone])
    row = row[np.lexsort((row, frame.start[row]))]
    named = np.where(marks_of_post[row] >= 0, marks_of_post[row], row)
    said = said_of(frame, row, named)
    names = texts(said, "name")
    told = lookup([operation(text) if text else "other" for text in names[1]], names[0], missing="other")
    op = np.where(told != "other", told, operation_of(frame, named))
    real = (op != "other") & (not none)  # others are init, wait and the like
    row, library = row[real], np.full(int(real.sum()), "nccl", dtype=object)
    return Parts(
        row, Carrier.HOST, row, frame.track[row], frame.start[row], said.filter(array_of(real)), op[real], library
    )
