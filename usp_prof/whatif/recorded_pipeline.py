"""Recorded pipeline: its actions with their own times, and the order in which each rank ran them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, lookup, rows_by_code
from usp_prof.model.errors import UsageError
from usp_prof.schedule_orders import Action, Kind, Order
from usp_prof.tables import calls, clock
from usp_prof.tables.table_set import TableSet, memoized

_KINDS = tuple(str(kind) for kind in Kind)
MOST_STEPS = 6
"""Maximum number of steps to simulate; each needs one simulation per tested order."""


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """The pipeline as it ran: typical time of each (stage, kind), action order of the ranks, and measured window."""

    duration: dict[tuple[int, Kind], int]
    order: Order
    micro_batches: int
    window_ns: float
    overhead_ns: int = 0
    """Fixed cost of each action in addition to its work: posting, annotations, the gap to the next action."""
    transfer_ns: int = 0
    """Time of a transfer to another rank if both sides are ready."""
    meets: bool = True
    """Whether all stages synchronize at the end of a step; otherwise each starts the next when its work is done."""
    own: dict[tuple[int, Kind, int], int] = field(default_factory=dict)
    """Time of each (stage, kind, micro-batch), so that the noise of an action stays at its place."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return max(stage for stage, _ in self.duration) + 1

    def scaled(self, factor: float) -> Pipeline:
        """Return the pipeline with all work scaled; the fixed cost per action stays."""
        return replace(
            self,
            duration={key: round(duration_ns * factor) for key, duration_ns in self.duration.items()},
            own={key: round(duration_ns * factor) for key, duration_ns in self.own.items()},
        )

    def work(self, stage: int, kind: Kind, micro_batch: int) -> int | None:
        """Return an action's own time, or `None` if unknown; new micro-batches get the time of a recorded one."""
        usual = self.duration.get((stage, kind))
        return self.own.get((stage, kind, micro_batch % max(self.micro_batches, 1)), usual)


def pipeline_of(tables: TableSet) -> Pipeline:
    """Return the pipeline of the median step, memoized; raises if the run has no actions."""
    return _gathered(tables)[0]


def pipeline_steps(tables: TableSet) -> tuple[Pipeline, ...]:
    """Return the pipeline of each step, with that step's window and its actions' own times.

    As in a replay, the first of three or more steps is left out. At most `MOST_STEPS` evenly spaced steps are used.
    """
    return _gathered(tables)[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Actions:
    """Actions of all ranks: one entry per action in each array, times on aligned clocks."""

    rank: Ints
    step: Ints
    stage: Ints
    kind: Ints
    """Index in `_KINDS`."""
    micro_batch: Ints
    begin: Ints
    end: Ints
    busy: Ints
    """Time without its waits for pipeline transfers."""

    def take(self, rows: Ints | Flags) -> _Actions:
        """Return the given actions only."""
        return _Actions(*(getattr(self, column.name)[rows] for column in fields(self)))

    def keys(self, rows: Ints) -> list[tuple[int, Kind, int]]:
        """Return stage, kind and micro-batch of the given actions."""
        kinds = [Kind(_KINDS[code]) for code in self.kind[rows].tolist()]
        return list(zip(self.stage[rows].tolist(), kinds, self.micro_batch[rows].tolist(), strict=True))


@memoized("whatif pipeline")
def _gathered(tables: TableSet) -> tuple[Pipeline, tuple[Pipeline, ...]]:
    actions = _actions_of(tables)
    actions = actions.take(
        (actions.step >= 0) & (actions.stage >= 0) & (actions.kind >= 0) & (actions.micro_batch >= 0)
    )
    if not len(actions.rank):
        raise UsageError("the run has no pipeline actions with stage and micro-batch", hint="mark them with pp::F ...")
    clocks = clock.fit_clocks(tables)
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
    """Return each action's median time over steps and replicas."""
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
    """Return one step's pipeline: its own action times, and stage times scaled by the total of its actions."""
    own = _own_times(in_step)
    usual_ns = sum(typical.work(*key) or 0 for key in own)
    longer = sum(own.values()) / usual_ns if usual_ns else 1.0
    return replace(typical.scaled(longer), own=own, window_ns=_window(in_step))


def _actions_of(tables: TableSet) -> _Actions:
    clocks = clock.fit_clocks(tables)
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
    """Return the transfer time between stages on a device: the lower quartile, in which both sides were ready.

    On a CPU a range lasts until the rank calls wait, so it says nothing about the link.
    """
    if not any(map(tables.ran_on_gpu, tables.ranks)):
        return 0
    rows = calls.match_calls(tables).columns()
    times = rows["transfer_ns"][rows.matches("axis", "pp") & rows["complete"] & (rows["transfer_ns"] >= 0)]
    return int(np.quantile(times, 0.25)) if len(times) else 0


def _meets(tables: TableSet) -> bool:
    """Return whether all stages synchronize once per step, for example for the norm of all gradients."""
    rows = calls.match_calls(tables).columns()
    if not len(rows):
        return True
    return bool((rows.matches("axis", "pp", "world", "unknown") & ~rows.matches("matched_by", "p2p")).any())


def _overhead(actions: _Actions) -> int:
    """Return the fixed cost of an action: its time without work, plus the gap to the next action without a wait."""
    actions = actions.take(np.lexsort((actions.begin, actions.rank, actions.step)))
    is_next = (actions.step[1:] == actions.step[:-1]) & (actions.rank[1:] == actions.rank[:-1])
    gaps = np.maximum(actions.begin[1:] - actions.end[:-1], 0)[is_next]
    idle_ns = float(np.median(actions.end - actions.begin - actions.busy))
    return round(idle_ns + (float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0))


def _busy(tables: TableSet, rank: int, begin: Ints, end: Ints) -> Ints:
    """Return each action's time without waits for pipeline transfers: from its first other activity to its last.

    An action from 0 to 10 whose receive waits until 4, with compute from 4 to 6 and from 7 to 9, is busy for 5. The
    pause in between is think time of the host, which belongs to the action.
    """
    work = tables.columns("activities", rank)
    rows = np.flatnonzero(~(work.matches("kind", "communication") & work.matches("axis", "pp")))
    rows = rows[np.argsort(work["start_ns"][rows], kind="stable")]
    if not len(rows):
        return end - begin
    start = work["start_ns"][rows]
    latest_end = np.maximum.accumulate(start + work["dur_ns"][rows])  # of all activities so far
    first = np.searchsorted(latest_end, begin, side="right")  # the first to end after the action's start
    last = np.searchsorted(start, end, side="left") - 1  # the last to start before the action's end
    opens = np.maximum(start[np.minimum(first, len(start) - 1)], begin)
    closes = np.minimum(latest_end[np.maximum(last, 0)], end)
    return np.where(first <= last, closes - opens, end - begin)


def _own_order(actions: _Actions) -> Order:
    """Return the action order of each rank of one pipeline in the last step."""
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
    """Return the median over steps of the time from first start to last end."""
    by_step = rows_by_code(group_codes(actions.step)).values()
    windows = [float(actions.end[rows].max() - actions.begin[rows].min()) for rows in by_step]
    return float(np.median(windows))
