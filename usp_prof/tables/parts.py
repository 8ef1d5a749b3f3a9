"""Which events carry this rank's communication? The parts, before their groups and bytes are worked out.

GPU: each communication kernel. CPU: each gloo range, with the c10d op that posted it. Without either (a GPU job
recorded without GPU events): the host ranges of `record_param_comms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.tracks import nest
from usp_prof.model.schema import Kind
from usp_prof.tables.arguments import Field
from usp_prof.tables.classification import Work, operation
from usp_prof.tables.described import coded_texts, describe, elements, merge, second_elements, texts
from usp_prof.tables.frame import HOST_OPS, MARKS
from usp_prof.tables.kernels import kinds
from usp_prof.tables.streams import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.tables.frame import EventFrame
    from usp_prof.tables.links import Links

    Ints = NDArray[np.int64]

P2P = ("send", "recv", "send_recv")
RECORD = "record_param_comms"


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of the frame, by start: where each part runs, who posted it, what both say."""

    row: Ints
    """The event that carries the part; for host ranges the range."""
    on_host: bool
    """The parts are host ranges: no event of the communication itself is known."""
    gloo: bool
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


def find_parts(frame: EventFrame, links: Links) -> Parts:
    """Find the parts of a trace."""
    kind, library = kinds(frame, links.work)
    communication = kind == list(Work).index(Work.COMMUNICATION)
    if communication.any():
        names = np.array([*library.dictionary.to_pylist(), ""], dtype=object)[library.indices.to_numpy()]
        return _from_kernels(frame, links, np.flatnonzero(communication), names[communication])
    gloo = _ranges(frame, MARKS, lambda name: name.startswith("gloo:"))
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
    post = _around(frame, _ranges(frame, HOST_OPS, lambda name: name == RECORD), track, at)
    mark = _around(frame, _ranges(frame, MARKS, lambda name: name.startswith("nccl:")), track, at)
    c10d = _around(frame, _ranges(frame, HOST_OPS, lambda name: name.startswith("c10d::")), track, at)
    # A mark names the tensors themselves; the record around it only their list.
    said = merge([describe(frame, row), describe(frame, mark), describe(frame, post)])
    said_names = texts(said, "name")
    told = np.array([operation(text) if text else "other" for text in said_names[1]] + ["other"], dtype=object)
    op = told[said_names[0]]
    kernel = frame.by_name(row, _operation_of_kernel, object)
    for other in (_operation(frame, mark), _operation(frame, c10d), kernel):
        op = np.where((op == "other") | ((op == "send_recv") & (other != "other")), other, op)
    op = _alike(op, kernel, streams(frame, row))
    return Parts(row, False, False, np.where(post >= 0, post, c10d), track, at, said, op, library)  # noqa: FBT003


def _alike(op: NDArray[np.object_], kernel: NDArray[np.object_], stream: Ints) -> NDArray[np.object_]:
    """Name the SendRecv kernels that nothing else tells of as the others of their stream, where those agree.

    NCCL carries out an all-to-all by the kernel of sends; what was launched before the window has no host call.
    """
    exchanges = kernel == "send_recv"
    for one in np.unique(stream[exchanges & (op == "send_recv")]).tolist():
        here = exchanges & (stream == one)
        told = set(op[here].tolist()) - {"send_recv"}
        if len(told) == 1:
            op = np.where(here, told.pop(), op)
    return op


def _operation_of_kernel(name: str) -> str:
    return operation(name.split("(", maxsplit=1)[0] if name.startswith("nccl") else name)


def _from_gloo(frame: EventFrame, row: Ints) -> Parts:
    op = frame.by_name(row, lambda name: operation(name.removeprefix("gloo:")), object)
    post = _posts(frame, row, op)
    said = merge([describe(frame, row), describe(frame, post)])
    names = texts(said, "name")
    told = np.array([operation(text) if text else "other" for text in names[1]] + ["other"], dtype=object)[names[0]]
    posted = _operation(frame, post)
    op = np.where(told != "other", told, np.where(posted != "other", posted, op))
    origin = np.where(post >= 0, post, row)
    library = np.full(len(row), "gloo", dtype=object)
    return Parts(row, False, True, post, frame.track[origin], frame.start[origin], said, op, library)  # noqa: FBT003


def _from_host(frame: EventFrame, *, none: bool) -> Parts:
    post = _ranges(frame, HOST_OPS, lambda name: name == RECORD)
    mark = _ranges(frame, MARKS, lambda name: name.startswith("nccl:"))
    inner = _around(frame, post, frame.track[mark], frame.start[mark])
    # A mark without a record around it stands for itself; a record with a mark inside takes the mark's name.
    marks_of_post = np.full(len(frame) + 1, -1, np.int64)
    marks_of_post[inner[inner >= 0]] = mark[inner >= 0]
    alone = mark[inner < 0]
    row = np.concatenate([post, alone])
    row = row[np.lexsort((row, frame.start[row]))]
    named = np.where(marks_of_post[row] >= 0, marks_of_post[row], row)
    said = merge([describe(frame, row), describe(frame, named)])
    names = texts(said, "name")
    told = np.array([operation(text) if text else "other" for text in names[1]] + ["other"], dtype=object)[names[0]]
    op = np.where(told != "other", told, _operation(frame, named))
    real = (op != "other") & (not none)  # others are init, wait and the like
    return Parts(
        row[real], True, False, row[real], frame.track[row[real]], frame.start[row[real]],  # noqa: FBT003
        said.filter(real), op[real], np.full(int(real.sum()), "nccl", dtype=object),
    )  # fmt: skip


def _ranges(frame: EventFrame, categories: tuple[str, ...], wanted: Callable[[str], bool]) -> Ints:
    rows = frame.rows(*categories)
    rows = rows[frame.by_name(rows, wanted)]
    return np.asarray(rows[np.lexsort((rows, frame.start[rows]))], np.int64)


def _around(frame: EventFrame, ranges: Ints, track: Ints, at: Ints) -> Ints:
    """Give the innermost of the ranges around each moment of a thread; -1 without any."""
    inner = nest(frame.track[ranges], frame.start[ranges], frame.duration[ranges]).innermost(track, at)
    return np.asarray(np.where(inner >= 0, ranges[inner], -1), np.int64) if len(ranges) else inner


def _operation(frame: EventFrame, rows: Ints) -> NDArray[np.object_]:
    """Name the operation by the name of an event; "other" for a row of -1."""
    result = np.full(len(rows), "other", dtype=object)
    known = rows >= 0
    result[known] = frame.by_name(rows[known], lambda name: operation(name.partition(":")[2] or name), object)
    return result


def _posts(frame: EventFrame, row: Ints, op: NDArray[np.object_]) -> Ints:
    """Find the c10d op that posted each gloo range.

    Sends and receives begin inside it. The others run on gloo's workers: of one operation and size, the posts and
    the ranges follow each other in the same order, so they are counted off against each other.
    """
    posts = _ranges(frame, HOST_OPS, lambda name: name.startswith("c10d::"))
    found = _around(frame, posts, frame.track[row], frame.start[row])
    away = np.flatnonzero((found < 0) & ~np.isin(op, P2P))
    inside = np.isin(posts, found)
    free = posts[~inside]
    kind = _operation(frame, free)
    kind = np.where(kind == "reduce_scatter", "all_reduce", kind)  # gloo carries it out as one
    row_key, post_key = _keys(frame, row[away], op[away]), _keys(frame, free, kind)
    codes, inverse = np.unique(np.concatenate([row_key, post_key]), return_inverse=True)
    left, right = inverse[: len(row_key)], inverse[len(row_key) :]
    surplus = np.bincount(left, minlength=len(codes)) - np.bincount(right, minlength=len(codes))
    # More ranges than posts: the first ones were posted before the window began.
    left_place = _count_off(left) - np.maximum(surplus, 0)[left]
    stride = len(row) + len(free) + 1
    wanted, offered = left * stride + left_place, right * stride + _count_off(right)
    order = np.argsort(offered)
    place = np.searchsorted(offered[order], wanted)
    place = np.minimum(place, max(len(offered) - 1, 0))
    if len(offered):
        hit = (offered[order][place] == wanted) & (left_place >= 0)
        found[away] = np.where(hit, free[order[place]], -1)
    return found


def _keys(frame: EventFrame, rows: Ints, op: NDArray[np.object_]) -> NDArray[np.str_]:
    """Tell operations of different size apart: by the elements of the input, which c10d lists after the output."""
    dims, values = coded_texts(frame.arguments(rows, (Field("dims", "Input Dims", Kind.TEXT),))["dims"])
    outputs_first = np.isin(op, ("all_gather", "reduce_scatter", "all_to_all"))
    first = np.array([elements(text) for text in values] + [-1])[dims]
    second = np.array([second_elements(text) for text in values] + [-1])[dims]
    posted = frame.by_name(rows, lambda name: name.startswith("c10d::"))
    reduce_scatter = frame.by_name(rows, lambda name: "reduce_scatter" in name)
    count = np.where(posted & (outputs_first | reduce_scatter) & (second >= 0), second, first)
    return np.char.add(np.char.add(op.astype(str), " "), count.astype(str))


def _count_off(codes: Ints) -> Ints:
    """Count off the entries of each code in the order in which they stand."""
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    begins = np.r_[True, sorted_codes[1:] != sorted_codes[:-1]] if len(codes) else np.zeros(0, dtype=bool)
    base = np.maximum.accumulate(np.where(begins, np.arange(len(codes)), 0))
    numbers = np.empty(len(codes), np.int64)
    numbers[order] = np.arange(len(codes)) - base
    return numbers
