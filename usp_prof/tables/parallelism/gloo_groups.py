"""Process groups of gloo's workers, if no event names a group.

gloo gives each process group its own worker threads, created in the order of the groups, and a worker serves only one
group. So the work on a worker is evidence for its group: the growth of gathers (the group's size), the marks around
posts, the kind of operation. Workers of later groups have higher numbers. Dynamic programming finds the best assignment
on one rank, marked as inferred. `gloo_members` checks the result against the other ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.model.schema import Kind
from usp_prof.model.topology import DATA_AXES, Axis, Group
from usp_prof.tables.communication.arguments import elements
from usp_prof.tables.communication.parts import Parts
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.parallelism.axis_names import axis_of_marks, described

_IMPOSSIBLE = -1e9
# Points for operations typical (positive) or untypical (negative) of an axis; others are no evidence.
_FITS = {
    "all_to_all": {Axis.EP: 2.0, Axis.CP: 1.0, Axis.TP: -1.0, Axis.PP: -2.0},
    "all_gather": {Axis.TP: 0.5, Axis.DP: 0.5, Axis.DP_SHARD: 0.5, Axis.PP: -2.0, Axis.DP_REPLICATE: -1.0},
    "reduce_scatter": {
        Axis.TP: 0.5,
        Axis.DP: 0.5,
        Axis.DP_SHARD: 0.5,
        Axis.PP: -2.0,
        Axis.EP: -1.0,
        Axis.DP_REPLICATE: -1.0,
    },
    "all_reduce": {Axis.UNKNOWN: 0.5, Axis.DP: 0.5, Axis.DP_REPLICATE: 0.5, Axis.TP: 0.25, Axis.EP: -0.5},
}
_ALONE = -0.3
"""Points of a group with one member, if no gather shows its size: few trainers call collectives there."""


@dataclass(slots=True)
class _Worker:
    """The work of one worker thread."""

    thread: int
    rows: list[int] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)


def groups_of_workers(frame: EventFrame, parts: Parts, groups: Sequence[Group]) -> Ints:
    """Return the index of each part's group in `groups`; -1 if none fits."""
    # Indexes in `groups` of this rank's groups, in order of creation.
    candidates = [place for place, group in enumerate(groups) if frame.rank in group.ranks]
    candidates.sort(key=lambda place: created(groups[place].name))
    group_of_part = _of_transfers(frame, parts, groups, candidates)
    workers = _workers(frame, parts)
    if not candidates or not workers:
        return group_of_part
    # One row per worker, one column per candidate.
    scores = [[_score(worker, groups[place]) for place in candidates] for worker in workers]
    for worker, choice, of_worker in zip(workers, _assign(scores), scores, strict=True):
        if of_worker[choice] > 0:
            group_of_part[worker.rows] = candidates[choice]
    return group_of_part


def _of_transfers(frame: EventFrame, parts: Parts, groups: Sequence[Group], candidates: list[int]) -> Ints:
    """Return the group of sends and receives: the only one of their mark's axis; without a mark, the pipeline's."""
    axes = [*Axis]
    candidates = [place for place in candidates if groups[place].size > 1]
    world = [place for place in candidates if groups[place].description == "default_pg"]
    # By axis: the index of its only group, -1 for none or several; the last entry is for parts without a mark.
    only_group = np.full(len(axes) + 1, -1, np.int64)
    for number, axis in enumerate(axes):
        of_axis = [place for place in candidates if groups[place].axis == axis]
        # The first and the last stage also have a group for their embeddings, which does not span the axis. An axis
        # that spans the whole job uses the default group.
        fitting = [place for place in of_axis if described(groups[place].description).sizes] or of_axis or world
        if len({groups[place].ranks for place in fitting}) == 1:
            only_group[number] = fitting[0]
    only_group[-1] = only_group[axes.index(Axis.PP)]
    axis_of_part = axis_of_marks(frame, parts.posted_track, parts.posted_at)
    return np.where(np.isin(parts.operation, P2P), only_group[axis_of_part], -1)


def created(name: str) -> tuple[int, str]:
    """Sort groups by creation: PyTorch numbers them."""
    return (int(name), "") if name.isdigit() else (1 << 60, name)


def _workers(frame: EventFrame, parts: Parts) -> list[_Worker]:
    """Return the work of each worker thread, by thread number."""
    collective = np.flatnonzero(~np.isin(parts.operation, P2P))
    threads = frame.texts("thread", parts.row[collective]).tolist()
    growth = _growth(frame, parts, collective)
    axes = [*Axis]
    marks = axis_of_marks(frame, parts.posted_track[collective], parts.posted_at[collective]).tolist()
    workers: dict[int, _Worker] = {}
    operations = parts.operation[collective].tolist()
    for row, thread, op, size, mark in zip(
        collective.tolist(), threads, operations, growth.tolist(), marks, strict=True
    ):
        if not thread.isdigit():
            continue
        worker = workers.setdefault(int(thread), _Worker(int(thread)))
        worker.rows.append(row)
        worker.operations[op] += 1
        if size > 0:
            worker.sizes[size] += 1
        if mark >= 0:
            worker.marks[axes[mark]] += 1
    return [workers[thread] for thread in sorted(workers)]


def _growth(frame: EventFrame, parts: Parts, rows: Ints) -> Ints:
    """Return the group size from the ratio of a gather's output to its input, or a scatter's input to its output."""
    post = parts.post[rows]
    sized = np.isin(parts.operation[rows], ("all_gather", "reduce_scatter")) & (post >= 0)
    growth = np.full(len(rows), -1, np.int64)
    dims = frame.arguments(post[sized], (Field("dims", "Input Dims", Kind.TEXT),))["dims"].to_pylist()
    ratio_of_dims = {text: _ratio(elements(text), elements(text, 1)) for text in set(dims)}
    growth[sized] = [ratio_of_dims[text] for text in dims]
    return growth


def _ratio(first: int, second: int) -> int:
    """Divide the larger by the smaller; -1 unless the result is an integer."""
    low, high = sorted((first, second))
    return high // low if low > 0 and high % low == 0 else -1


def _score(worker: _Worker, group: Group) -> float:
    """Return how well a group fits a worker's operations; not above zero without evidence."""
    if worker.sizes and worker.sizes.most_common(1)[0][0] != group.size:
        return _IMPOSSIBLE
    total = worker.operations.total()
    axis, spanned = Axis(group.axis), described(group.description).product
    score = sum(count * _FITS.get(op, {}).get(axis, 0.0) for op, count in worker.operations.items()) / total
    score += 0.1 if worker.sizes else _ALONE if group.size == 1 else 0.0
    for mark, count in worker.marks.items():
        is_same_axis = mark == axis or (mark in DATA_AXES and axis in DATA_AXES)
        points = 2.0 if is_same_axis else 1.0 if mark in spanned else 0.5 if axis is Axis.UNKNOWN else -1.0
        score += points * count / total
    return score


def _assign(scores: Sequence[Sequence[float]]) -> list[int]:
    """Choose a group for each worker, in order and at most two workers each, with the highest sum of scores.

    `scores` has one row per worker and one column per group. Every group has two slots for workers, and each worker
    takes a later slot than the one before. Dynamic programming over workers: for each slot the highest sum of scores so
    far.

        scores [[2, 1], [3, 1], [0, 2]]    groups 0, 0, 1: the sum is 2 + 3 + 2
    """
    slots = range(2 * len(scores[0]))
    best = [scores[0][slot // 2] for slot in slots]
    # By worker from the second on, and slot: the best slot of the previous worker.
    origins: list[list[int]] = []
    for score_of_group in scores[1:]:
        origin = [max(range(slot), key=best.__getitem__, default=0) for slot in slots]
        before = [best[origin[slot]] if slot else _IMPOSSIBLE * 100 for slot in slots]  # nothing precedes the first
        best = [before[slot] + score_of_group[slot // 2] for slot in slots]
        origins.append(origin)
    # From the best slot of the last worker back to the first.
    chosen = [max(slots, key=best.__getitem__)]
    for origin in reversed(origins):
        chosen.append(origin[chosen[-1]])
    return [slot // 2 for slot in chosen[::-1]]
