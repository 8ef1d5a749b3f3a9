"""Batches: sends and receives that NCCL runs as one kernel (`torch.distributed.batch_isend_irecv`).

PyTorch records each send and receive of a batch on the host. Their kernel is launched afterwards, when the batch ends,
so no record is around its launch and its arguments are empty. The batch contains what the launching thread recorded
since its previous communication launch, except for records around a launch of their own:

    host      |send to 3| |recv from 1|  |launch|
    device                                  |SendRecv|      a send to rank 3 and a receive from rank 1
"""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, sorted_by
from usp_prof.model.schema import Kind
from usp_prof.tables.communication.arguments import coded_texts
from usp_prof.tables.communication.posts import around as around_moments
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.classification import operation
from usp_prof.tables.events.frame import EventFrame

_DIRECTED = ("recv", "send")


def split_batches(
    frame: EventFrame, posts: tuple[Ints, Ints], launches: tuple[Ints, Ints], around: tuple[Ints, Ints], is_batch: Flags
) -> tuple[Ints, Ints]:
    """Return one entry per send or receive of a batch and per other kernel: the kernel's index, and the post or -1.

    Entries are sorted by kernel, and receives precede sends. `posts` are all records and all c10d ops. `launches` has
    the thread and time of each communication kernel's launch, `around` the record and the c10d op around it, and
    `is_batch` marks the kernels that may be batches.
    """
    (records, ops), at = posts, launches[1]
    # A record is inside the c10d op that posted it; without records, the ops describe the batch.
    outer = around_moments(frame, ops, frame.track[records], frame.start[records])
    free = np.setdiff1d(np.concatenate([records, np.setdiff1d(ops, outer)]), np.concatenate(around))
    direction = _directions(frame, free)
    free, direction = free[direction >= 0], direction[direction >= 0]
    kernel = _next_launches(launches, (frame.track[free], frame.start[free]))
    in_batch = (kernel >= 0) & is_batch[kernel]
    kernel, free, direction = kernel[in_batch], free[in_batch], direction[in_batch]
    order = np.lexsort((frame.start[free], direction, kernel))
    alone = np.setdiff1d(np.arange(len(at)), kernel)
    all_kernels = np.append(kernel[order], alone)
    all_posts = np.append(free[order], np.full(len(alone), -1))
    by_kernel = np.argsort(all_kernels, kind="stable")
    return all_kernels[by_kernel], all_posts[by_kernel]


def _next_launches(launches: tuple[Ints, Ints], moments: tuple[Ints, Ints]) -> Ints:
    """Return for each moment on a thread the index of the thread's next launch, or -1."""
    (track, at), (track_of_moment, when) = launches, moments
    following = np.full(len(when), -1, np.int64)
    for thread in distinct(track_of_moment).tolist():
        launched = sorted_by(at, np.flatnonzero(track == thread))
        of_thread = np.flatnonzero(track_of_moment == thread)
        place = np.searchsorted(at[launched], when[of_thread])
        has_following = place < len(launched)
        following[of_thread[has_following]] = launched[place[has_following]]
    return following


def _directions(frame: EventFrame, posts: Ints) -> Ints:
    """Return 0 for a receive, 1 for a send and -1 for all others, from the collective's name or that of the op."""
    codes, names = coded_texts(frame.arguments(posts, (Field("name", "Collective name", Kind.TEXT),))["name"])
    by_argument = np.array([_direction(name) for name in names], np.int64)[codes]
    by_name = frame.by_name(posts, lambda name: _direction(name.rpartition(":")[2]), np.int64)
    return np.where(by_argument >= 0, by_argument, by_name)


def _direction(name: str) -> int:
    word = operation(name) if name else ""
    return _DIRECTED.index(word) if word in _DIRECTED else -1
