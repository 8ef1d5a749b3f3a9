"""Recorded pipeline: its actions with their own times, and the order in which each rank took them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.model.errors import UsageError
from usp_prof.schedule_orders import Action, Kind, Order
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Ints
    from usp_prof.tables.table_set import TableSet

_KINDS = tuple(str(kind) for kind in Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """What the pipeline did: mean time of each (stage, kind), the ranks' own order, and the measured window."""

    duration: dict[tuple[int, Kind], int]
    order: Order
    micro_batches: int
    window_ns: float
    overhead_ns: int = 0
    """What each action costs beside its work, however small it is: posting, marks, the gap to the next."""
    transfer_ns: int = 0
    """What a hand-over to another rank takes, where nobody is late."""
    meets: bool = True
    """All stages meet at the end of a step; else each begins the next when its own work is done."""
    own: dict[tuple[int, Kind, int], int] = field(default_factory=dict)
    """The time of each (stage, kind, micro-batch), where they differ: the noise of one step stays in its place."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return max(stage for stage, _ in self.duration) + 1

    def scaled(self, factor: float) -> Pipeline:
        """Give the same with all work scaled; what an action costs beside its work stays."""
        return replace(
            self,
            duration={key: round(each * factor) for key, each in self.duration.items()},
            own={key: round(each * factor) for key, each in self.own.items()},
        )

    def work(self, stage: int, kind: Kind, micro_batch: int) -> int | None:
        """Give an action's own time (of micro-batches that never ran, another's); `None` where none is known."""
        usual = self.duration.get((stage, kind))
        return self.own.get((stage, kind, micro_batch % max(self.micro_batches, 1)), usual)


def pipeline_of(tables: TableSet) -> Pipeline:
    """Gather the pipeline's actions, once; raises where the run has none."""
    return tables.memo("whatif pipeline", lambda: _gathered(tables))


def _gathered(tables: TableSet) -> Pipeline:
    clocks = clock.of(tables)
    rows = []
    for rank in tables.ranks:
        actions = tables.columns("actions", rank)
        codes, texts = actions.codes("kind")
        kind = lookup([_KINDS.index(text) if text in _KINDS else -1 for text in texts], codes, missing=-1)
        begin, end = (clocks.align(rank, actions[name]) for name in ("device_start_ns", "device_end_ns"))
        busy = _busy(tables, rank, actions["device_start_ns"], actions["device_end_ns"])
        rows.append(
            np.stack(
                [
                    np.full(len(kind), rank),
                    actions["step"],
                    actions["stage"],
                    kind,
                    actions["micro_batch"],
                    begin,
                    end,
                    busy,
                ]
            )
        )
    found = np.concatenate(rows, axis=1)
    found = found[:, (found[1] >= 0) & (found[2] >= 0) & (found[3] >= 0) & (found[4] >= 0)]
    if not found.shape[1]:
        raise UsageError("the run has no pipeline actions with stage and micro-batch", hint="mark them with pp::F ...")
    _, _, stage, kind, number, _, _, busy = found
    duration = {
        (int(s), Kind(_KINDS[k])): int(np.median(busy[(stage == s) & (kind == k)]))
        for s, k in {(int(s), int(k)) for s, k in zip(stage.tolist(), kind.tolist(), strict=True)}
    }
    own = {
        (int(s), Kind(_KINDS[k]), int(m)): int(np.median(busy[(stage == s) & (kind == k) & (number == m)]))
        for s, k, m in set(zip(stage.tolist(), kind.tolist(), number.tolist(), strict=True))
    }
    order, passes = _own_order(found), int(number.max()) + 1
    return Pipeline(duration, order, passes, _window(found), _overhead(found), _transfer(tables), _meets(tables), own)


def _transfer(tables: TableSet) -> int:
    """Measure the hand-overs between stages on a device: those of the faster quarter had nobody to wait for.

    On a CPU a range lasts until it is asked for, which says nothing of the link.
    """
    if not any(len(tables.columns("kernels", rank)) for rank in tables.ranks):
        return 0
    rows = calls.of(tables).columns()
    times = rows["transfer_ns"][rows.matches("axis", "pp") & rows["complete"] & (rows["transfer_ns"] >= 0)]
    return int(np.quantile(times, 0.25)) if len(times) else 0


def _meets(tables: TableSet) -> bool:
    """Say whether all stages meet once a step, as for the norm of all gradients: then none begins the next before."""
    rows = calls.of(tables).columns()
    if not len(rows):
        return True
    return bool((rows.matches("axis", "pp", "world", "unknown") & ~rows.matches("matched_by", "p2p")).any())


def _overhead(found: Ints) -> int:
    """Measure what an action takes beside its work, and the gap to the rank's next where nothing is awaited."""
    order_ = np.lexsort((found[5], found[0], found[1]))
    step, rank, begin, end, busy = (found[row][order_] for row in (1, 0, 5, 6, 7))
    same = (step[1:] == step[:-1]) & (rank[1:] == rank[:-1])
    gaps = np.maximum(begin[1:] - end[:-1], 0)[same]
    beside = float(np.median(end - begin - busy))
    return round(beside + (float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0))


def _busy(tables: TableSet, rank: int, begin: Ints, end: Ints) -> Ints:
    """Measure each action without its waits for pipeline transfers: what of it overlaps other activities."""
    work = tables.columns("activities", rank)
    rows = ~(work.matches("kind", "communication") & work.matches("axis", "pp"))
    start = work["start_ns"][rows]
    order_ = np.argsort(start, kind="stable")
    start = start[order_]
    reach = np.maximum.accumulate((work["start_ns"] + work["dur_ns"])[rows][order_]) if len(start) else start
    head = np.ones(len(start), dtype=bool)
    head[1:] = start[1:] > reach[:-1] if len(start) else False
    last = np.append(np.flatnonzero(head)[1:] - 1, len(start) - 1).astype(np.int64)
    low, high = start[head], reach[last] if len(start) else start
    if not len(low):
        return end - begin
    # Between the activities of one action the host thinks: that belongs to it, a receive's wait before it does not.
    first = np.searchsorted(high, begin, side="right")
    after = np.searchsorted(low, end, side="left") - 1
    inside = (first < len(low)) & (after >= first)
    first, after = np.minimum(first, len(low) - 1), np.maximum(after, 0)
    return np.where(inside, np.minimum(high[after], end) - np.maximum(low[first], begin), end - begin)


def _own_order(found: Ints) -> Order:
    """Give the order in which the ranks of one pipeline acted in the last step."""
    rank, step, stage, kind, number, begin, _, _ = found
    homes: dict[tuple[int, ...], int] = {}
    for each in np.unique(rank).tolist():
        homes.setdefault(tuple(np.unique(stage[rank == each]).tolist()), each)
    orders = []
    for stages in sorted(homes):
        mine = (rank == homes[stages]) & (step == step[rank == homes[stages]].max())
        rows = np.flatnonzero(mine)[np.argsort(begin[mine], kind="stable")]
        orders.append(tuple(Action(int(stage[i]), Kind(_KINDS[int(kind[i])]), int(number[i])) for i in rows.tolist()))
    return tuple(orders)


def _window(found: Ints) -> float:
    """Give the median over steps of first begin to last end."""
    step, begin, end = found[1], found[5], found[6]
    windows = [float(end[step == each].max() - begin[step == each].min()) for each in np.unique(step).tolist()]
    return float(np.median(windows))
