"""Recorded pipeline: its actions with their own times, and the order in which each rank took them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, lookup, rows_by_code
from usp_prof.model.errors import UsageError
from usp_prof.schedule_orders import Action, Kind, Order
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.table_set import TableSet

_KINDS = tuple(str(kind) for kind in Kind)
MOST_STEPS = 6
"""Steps that are simulated one by one: each costs a simulation for every order that is tried."""


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
    """The time of each (stage, kind, micro-batch), where they differ: the noise of an action stays in its place."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return max(stage for stage, _ in self.duration) + 1

    def scaled(self, factor: float) -> Pipeline:
        """Give the same with all work scaled; what an action costs beside its work stays."""
        return replace(
            self,
            duration={key: round(duration_ns * factor) for key, duration_ns in self.duration.items()},
            own={key: round(duration_ns * factor) for key, duration_ns in self.own.items()},
        )

    def work(self, stage: int, kind: Kind, micro_batch: int) -> int | None:
        """Give an action's own time (of micro-batches that never ran, another's); `None` where none is known."""
        usual = self.duration.get((stage, kind))
        return self.own.get((stage, kind, micro_batch % max(self.micro_batches, 1)), usual)


def pipeline_of(tables: TableSet) -> Pipeline:
    """Gather the pipeline's actions in the median step, once; raises where the run has none."""
    return _gathered_once(tables)[0]


def pipeline_steps(tables: TableSet) -> tuple[Pipeline, ...]:
    """Give the pipeline of each step by itself: with that step's window and its actions' own times.

    As in a replay, the first of three steps or more is left out. Of many steps `MOST_STEPS` are taken, evenly apart.
    """
    return _gathered_once(tables)[1]


def _gathered_once(tables: TableSet) -> tuple[Pipeline, tuple[Pipeline, ...]]:
    return tables.memo("whatif pipeline", lambda: _gathered(tables))


@dataclass(frozen=True, slots=True, eq=False)
class _Actions:
    """Actions of all ranks: one entry each in every array, times on aligned clocks."""

    rank: Ints
    step: Ints
    stage: Ints
    kind: Ints
    """Place in `_KINDS`."""
    micro_batch: Ints
    begin: Ints
    end: Ints
    busy: Ints
    """Time without its waits for pipeline transfers."""

    def take(self, rows: Ints | Flags) -> _Actions:
        """Keep some actions."""
        return _Actions(*(getattr(self, column.name)[rows] for column in fields(self)))

    def keys(self, rows: Ints) -> list[tuple[int, Kind, int]]:
        """Give stage, kind and micro-batch of some actions."""
        kinds = [Kind(_KINDS[code]) for code in self.kind[rows].tolist()]
        return list(zip(self.stage[rows].tolist(), kinds, self.micro_batch[rows].tolist(), strict=True))


def _gathered(tables: TableSet) -> tuple[Pipeline, tuple[Pipeline, ...]]:
    actions = _actions_of(tables)
    actions = actions.take(
        (actions.step >= 0) & (actions.stage >= 0) & (actions.kind >= 0) & (actions.micro_batch >= 0)
    )
    if not len(actions.rank):
        raise UsageError("the run has no pipeline actions with stage and micro-batch", hint="mark them with pp::F ...")
    clocks = clock.of(tables)
    if len(np.unique(clocks.component[np.isin(clocks.ranks, actions.rank)])) > 1:
        raise UsageError("the clocks of the pipeline's ranks are not tied together", hint="record calls between stages")
    duration = {}
    for rows in rows_by_code(group_codes(actions.stage, actions.kind)).values():
        stage, kind, _ = actions.keys(rows[:1])[0]
        duration[stage, kind] = int(np.median(actions.busy[rows]))
    order, passes = _own_order(actions), int(actions.micro_batch.max()) + 1
    overhead, transfer, meets = _overhead(actions), _transfer(tables), _meets(tables)
    own = _own_times(actions)
    typical = Pipeline(duration, order, passes, _window(actions), overhead, transfer, meets, own)
    return typical, tuple(_of_step(typical, actions.take(actions.step == step)) for step in _settled_steps(actions))


def _own_times(actions: _Actions) -> dict[tuple[int, Kind, int], int]:
    """Give each action's median time over steps and replicas."""
    own = {}
    for rows in rows_by_code(group_codes(actions.stage, actions.kind, actions.micro_batch)).values():
        own[actions.keys(rows[:1])[0]] = int(np.median(actions.busy[rows]))
    return own


def _settled_steps(actions: _Actions) -> list[int]:
    steps = np.unique(actions.step)
    if len(steps) >= 3:
        steps = steps[1:]
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).round().astype(np.int64)
    return [int(step) for step in steps[chosen]]


def _of_step(typical: Pipeline, in_step: _Actions) -> Pipeline:
    """Give one step's pipeline: its own times, and those of its stages as much longer as all of its actions take."""
    own = _own_times(in_step)
    usual_ns = sum(typical.work(*key) or 0 for key in own)
    longer = sum(own.values()) / usual_ns if usual_ns else 1.0
    return replace(typical.scaled(longer), own=own, window_ns=_window(in_step))


def _actions_of(tables: TableSet) -> _Actions:
    clocks = clock.of(tables)
    columns = []
    for rank in tables.ranks:
        actions = tables.columns("actions", rank)
        codes, texts = actions.codes("kind")
        kind = lookup([_KINDS.index(text) if text in _KINDS else -1 for text in texts], codes, missing=-1)
        begin, end = (clocks.align(rank, actions[name]) for name in ("device_start_ns", "device_end_ns"))
        busy = _busy(tables, rank, actions["device_start_ns"], actions["device_end_ns"])
        rank_of_action = np.full(len(kind), rank)
        columns.append(
            (rank_of_action, actions["step"], actions["stage"], kind, actions["micro_batch"], begin, end, busy)
        )
    return _Actions(*(np.concatenate(column) for column in zip(*columns, strict=True)))


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


def _overhead(actions: _Actions) -> int:
    """Measure what an action takes beside its work, and the gap to the rank's next where nothing is awaited."""
    actions = actions.take(np.lexsort((actions.begin, actions.rank, actions.step)))
    is_next = (actions.step[1:] == actions.step[:-1]) & (actions.rank[1:] == actions.rank[:-1])
    gaps = np.maximum(actions.begin[1:] - actions.end[:-1], 0)[is_next]
    beside = float(np.median(actions.end - actions.begin - actions.busy))
    return round(beside + (float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0))


def _busy(tables: TableSet, rank: int, begin: Ints, end: Ints) -> Ints:
    """Measure each action without its waits for pipeline transfers: from its first other activity to its last.

    An action from 0 to 10 whose receive waits until 4, with compute from 4 to 6 and from 7 to 9, is busy for 5: in the
    pause the host thinks, which belongs to the action.
    """
    work = tables.columns("activities", rank)
    rows = np.flatnonzero(~(work.matches("kind", "communication") & work.matches("axis", "pp")))
    rows = rows[np.argsort(work["start_ns"][rows], kind="stable")]
    if not len(rows):
        return end - begin
    start = work["start_ns"][rows]
    latest_end = np.maximum.accumulate(start + work["dur_ns"][rows])  # of all activities so far
    first = np.searchsorted(latest_end, begin, side="right")  # the first that ends after the action began
    last = np.searchsorted(start, end, side="left") - 1  # the last that begins before the action ends
    opens = np.maximum(start[np.minimum(first, len(start) - 1)], begin)
    closes = np.minimum(latest_end[np.maximum(last, 0)], end)
    return np.where(first <= last, closes - opens, end - begin)


def _own_order(actions: _Actions) -> Order:
    """Give the order in which the ranks of one pipeline acted in the last step."""
    homes: dict[tuple[int, ...], int] = {}
    for rank in np.unique(actions.rank).tolist():
        homes.setdefault(tuple(np.unique(actions.stage[actions.rank == rank]).tolist()), rank)
    orders = []
    for stages in sorted(homes):
        is_of_rank = actions.rank == homes[stages]
        rows = np.flatnonzero(is_of_rank & (actions.step == actions.step[is_of_rank].max()))
        rows = rows[np.argsort(actions.begin[rows], kind="stable")]
        orders.append(tuple(Action(*key) for key in actions.keys(rows)))
    return tuple(orders)


def _window(actions: _Actions) -> float:
    """Give the median over steps of first begin to last end."""
    by_step = rows_by_code(group_codes(actions.step)).values()
    windows = [float(actions.end[rows].max() - actions.begin[rows].min()) for rows in by_step]
    return float(np.median(windows))
