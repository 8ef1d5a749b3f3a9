"""Which process group does each gloo worker serve, where no event names a group?

gloo gives every process group worker threads of its own, made in the order in which the groups are made, and a worker
serves one group alone. So all that ran on a worker speaks for it together: how much its gathers grow (the group's
size), the marks around what it was asked, the kind of operation; and workers of later groups have higher numbers.
The assignment that fits all of this best is found by dynamic programming, and is marked as inferred.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.schema import Kind
from usp_prof.model.topology import Axis
from usp_prof.tables.communication.arguments import elements, second_elements
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.parallelism.axis_names import axis_of_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.model.topology import Group
    from usp_prof.tables.communication.parts import Parts
    from usp_prof.tables.events.frame import EventFrame

    Ints = NDArray[np.int64]

_IMPOSSIBLE = -1e9
_FITS = {
    "all_to_all": {Axis.EP: 2.0, Axis.CP: 1.0, Axis.TP: -1.0, Axis.PP: -2.0},
    "all_gather": {Axis.TP: 0.5, Axis.DP_SHARD: 0.5, Axis.PP: -2.0, Axis.DP_REPLICATE: -1.0},
    "reduce_scatter": {Axis.TP: 0.5, Axis.DP_SHARD: 0.5, Axis.PP: -2.0, Axis.EP: -1.0, Axis.DP_REPLICATE: -1.0},
    "all_reduce": {Axis.UNKNOWN: 0.5, Axis.DP: 0.5, Axis.DP_REPLICATE: 0.5, Axis.EP: -0.5},
}
_SAME = {Axis.DP, Axis.DP_SHARD, Axis.DP_REPLICATE}
_WORKERS_OF_A_GROUP = 2


@dataclass(slots=True)
class _Worker:
    """What ran on one worker thread."""

    thread: int
    rows: list[int] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)


def groups_of_workers(frame: EventFrame, parts: Parts, groups: Sequence[Group]) -> Ints:
    """Give for each part the place of its group in `groups`; -1 where nothing fits."""
    candidates = [place for place, group in enumerate(groups) if group.size > 1 and frame.rank in group.ranks]
    candidates.sort(key=lambda place: _made(groups[place].name))
    found = _of_transfers(frame, parts, groups, candidates)
    workers = _workers(frame, parts)
    if not candidates or not workers:
        return found
    scores = [[_score(worker, groups[place]) for place in candidates] for worker in workers]
    for worker, choice, row in zip(workers, _assign(scores), scores, strict=True):
        if row[choice] > 0:
            found[worker.rows] = candidates[choice]
    return found


def _of_transfers(frame: EventFrame, parts: Parts, groups: Sequence[Group], candidates: list[int]) -> Ints:
    """Give sends and receives the one group of their mark's axis; without a mark they are the pipeline's."""
    axes = [*Axis]
    world = [place for place in candidates if groups[place].description == "default_pg"]
    only = np.full(len(axes) + 1, -1, np.int64)
    for number, axis in enumerate(axes):
        # An axis that spans the whole job has no group of its own: it is the default group.
        fitting = [place for place in candidates if groups[place].axis == axis] or world
        only[number] = fitting[0] if len({groups[place].ranks for place in fitting}) == 1 else -1
    only[-1] = only[axes.index(Axis.PP)]
    marks = axis_of_marks(frame, parts.posted_track, parts.posted_at)
    return np.where(np.isin(parts.operation, P2P), only[marks], -1)


def _made(name: str) -> tuple[int, str]:
    """Sort groups by when they were made: PyTorch numbers them."""
    return (int(name), "") if name.isdigit() else (1 << 60, name)


def _workers(frame: EventFrame, parts: Parts) -> list[_Worker]:
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
        if size > 1:
            worker.sizes[size] += 1
        if mark >= 0:
            worker.marks[axes[mark]] += 1
    return [workers[thread] for thread in sorted(workers)]


def _growth(frame: EventFrame, parts: Parts, rows: Ints) -> Ints:
    """Give by how much a gather's output is larger than its input, or a scatter's input than its output: the size."""
    post = parts.post[rows]
    sized = np.isin(parts.operation[rows], ("all_gather", "reduce_scatter")) & (post >= 0)
    growth = np.full(len(rows), -1, np.int64)
    dims = frame.arguments(post[sized], (Field("dims", "Input Dims", Kind.TEXT),))["dims"].to_pylist()
    known = {text: _ratio(elements(text), second_elements(text)) for text in set(dims)}
    growth[sized] = [known[text] for text in dims]
    return growth


def _ratio(first: int, second: int) -> int:
    """Divide the larger by the smaller; -1 unless that is a whole number above one."""
    low, high = sorted((first, second))
    return high // low if low > 0 and high % low == 0 and high > low else -1


def _score(worker: _Worker, group: Group) -> float:
    """Say how well a group fits what ran on a worker; not above zero when nothing speaks for it."""
    if worker.sizes and worker.sizes.most_common(1)[0][0] != group.size:
        return _IMPOSSIBLE
    total = worker.operations.total()
    axis = Axis(group.axis)
    score = sum(count * _FITS.get(op, {}).get(axis, 0.0) for op, count in worker.operations.items()) / total
    score += 0.1 if worker.sizes else 0.0
    for mark, count in worker.marks.items():
        same = mark == axis or {mark, axis} <= _SAME
        score += (2.0 if same else 0.5 if axis is Axis.UNKNOWN else -1.0) * count / total
    return score


def _assign(scores: Sequence[Sequence[float]]) -> list[int]:
    """Choose a group for each worker, in order and at most two workers each, with the highest sum of scores."""
    groups = len(scores[0])
    states = [(place, used) for place in range(groups) for used in range(1, _WORKERS_OF_A_GROUP + 1)]
    best = {(place, used): (scores[0][place] if used == 1 else _IMPOSSIBLE * 10) for place, used in states}
    came: list[dict[tuple[int, int], tuple[int, int]]] = []
    for row in scores[1:]:
        before, best, origin = best, {}, {}
        reach, top = _IMPOSSIBLE * 100, (0, 1)
        for place, used in states:
            if used == 1 and place:
                for state in ((place - 1, u) for u in range(1, _WORKERS_OF_A_GROUP + 1)):
                    if before[state] > reach:
                        reach, top = before[state], state
            value, state = (reach, top) if used == 1 else (before[place, used - 1], (place, used - 1))
            best[place, used] = value + row[place]
            origin[place, used] = state
        came.append(origin)
    state = max(states, key=lambda s: best[s])
    chosen = [state[0]]
    for origin in reversed(came):
        state = origin[state]
        chosen.append(state[0])
    return chosen[::-1]
