"""Pipeline actions of all ranks on one clock, the schedule that matches their order, and its ideal bubble."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures import partition
from usp_prof.analyses.measures.partition import launch_starts
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import Intervals, union
from usp_prof.columns.rows import lookup, numbered, occurrence, per_code, range_at
from usp_prof.model.errors import UsageError
from usp_prof.model.selection import Selection
from usp_prof.model.topology import Axis
from usp_prof.schedule import Schedule, Shape, schedule_by_name
from usp_prof.schedule_orders import Action, Kind, Order, Timeline, order, simulate
from usp_prof.tables import calls, clock
from usp_prof.tables.table_set import TableSet

_INSIDE = (str(Axis.TP), str(Axis.CP), str(Axis.EP))
_WAITS_INSIDE = "torch"  # torch's own marks include the receive that an action waits for


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """One row per action, by rank and start, in common-clock times. `busy_ns` excludes waiting for a receive."""

    rank: Ints
    step: Ints
    stage: Ints
    kind: NDArray[np.object_]
    micro_batch: Ints
    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints
    source: str

    def take(self, rows: Flags | Ints) -> Actions:
        """Return the selected rows."""
        return Actions(**{name: getattr(self, name)[rows] for name in _ARRAYS}, source=self.source)

    def within(self, rank: int) -> Intervals:
        """Return the time that one rank spends in actions."""
        of_rank = self.rank == rank
        return union(self.start_ns[of_rank], self.end_ns[of_rank])


_ARRAYS = tuple(name for name in Actions.__dataclass_fields__ if name != "source")


def gather(tables: TableSet, selection: Selection) -> Actions:
    """Return the actions of all ranks in the selected steps. A pipeline cannot be judged by some of its stages."""
    actions_of_rank: list[dict[str, NDArray[Any]]] = []
    sources: set[str] = set()
    for sources_of_rank, arrays in calls.of_each_rank(tables, partial(_of_rank, selection=selection)):
        sources |= sources_of_rank
        actions_of_rank += [arrays] if sources_of_rank else []
    if not sources:
        return Actions(**{name: np.zeros(0, object if name == "kind" else np.int64) for name in _ARRAYS}, source="")
    stacked = {name: np.concatenate([arrays[name] for arrays in actions_of_rank]) for name in _ARRAYS}
    actions = Actions(**stacked, source="+".join(sorted(sources)))
    order = np.lexsort((actions.end_ns, actions.start_ns, actions.rank))
    return actions.take(order)


def _of_rank(tables: TableSet, rank: int, selection: Selection) -> tuple[set[str], dict[str, NDArray[Any]]]:
    """Return the sources of one rank's actions and the action columns; both are empty if it has no actions."""
    clocks, columns = clock.fit_clocks(tables), tables.columns("actions", rank)
    if not len(columns):
        return set(), {}
    sources = set(columns.codes("source")[1])
    start, end = _on_device(tables, rank)
    is_usable = (start >= 0) & (end >= start)
    is_usable &= (columns["step"] >= 0) & tables.selects(selection, columns["step"])
    busy = end - start
    if _WAITS_INSIDE in sources:
        sets = partition.sets_of(tables, rank)
        busy = busy - (sets.bubble - sets.compute).within(start, end)
    arrays = {
        **{name: columns[name] for name in ("rank", "step", "stage", "kind", "micro_batch")},
        "start_ns": clocks.align(rank, start),
        "end_ns": clocks.align(rank, end),
        "busy_ns": busy,
    }
    return sources, {name: values[is_usable] for name, values in arrays.items()}


def _on_device(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Return begin and end on the device of each action's own work.

    This is its compute and the collectives inside a stage. A backward also launches the gradients' reduction, which
    continues during later actions, and transfers between stages; neither counts as the action's time.
    """
    columns, activities = tables.columns("actions", rank), tables.columns("activities", rank)
    first, last = columns["device_start_ns"].copy(), columns["device_end_ns"].copy()
    launched = launch_starts(tables, rank)
    own = (launched >= 0) & (~activities.matches("kind", "communication") | activities.matches("axis", *_INSIDE))
    order = np.argsort(columns["start_ns"], kind="stable")
    action_starts = columns["start_ns"][order]
    # By activity: the action during which it was launched; -1 for none.
    action = lookup(order, range_at(action_starts, action_starts + columns["dur_ns"][order], launched), missing=-1)
    rows = np.flatnonzero(own & (action >= 0))
    if not len(rows):
        return first, last
    codes, inverse = np.unique(action[rows], return_inverse=True)
    start = activities["start_ns"][rows]
    first[codes] = per_code(inverse, start, np.minimum, len(codes))
    last[codes] = per_code(inverse, start + activities["dur_ns"][rows], np.maximum, len(codes))
    return first, last


def all_identified(actions: Actions) -> bool:
    """Return whether every action's stage and micro-batch are known; the order of actions needs both."""
    return bool(((actions.stage >= 0) & (actions.micro_batch >= 0)).all())


def pipelines(actions: Actions) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline, in order of first stage, or an empty list if they are unknown.

    Ranks with the same stages are replicas (data, tensor, context parallel). Meshes are regular, so the n-th rank of
    each such set belongs to the n-th pipeline. If the sets differ in size, it is unknown which ranks form a pipeline.
    """
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank in np.unique(actions.rank).tolist():
        stages = tuple(np.unique(actions.stage[actions.rank == rank]).tolist())
        holders.setdefault(stages, []).append(rank)
    sets = [holders[stages] for stages in sorted(holders)]
    if len({len(ranks) for ranks in sets}) != 1:
        return []
    return list(zip(*sets, strict=True))


def middle_step(actions: Actions, ranks: Iterable[int]) -> int:
    """Return the middle one of the steps in which most of `ranks` act; ranks without marks number steps differently."""
    rows = np.flatnonzero(np.isin(actions.rank, list(ranks)))
    (steps, step), (present, rank) = numbered(actions.step[rows]), numbered(actions.rank[rows])
    acts = np.zeros((len(steps), len(present)), bool)
    acts[step, rank] = True
    count = acts.sum(axis=1)
    candidates = steps[count == count.max()]
    return int(candidates[(len(candidates) - 1) // 2])


def order_of(actions: Actions, ranks: Iterable[int], step: int) -> Order:
    """Return the order in which the ranks of one pipeline acted in a step. Micro-batches count from 0."""
    orders = []
    for rank in ranks:
        rows = np.flatnonzero((actions.rank == rank) & (actions.step == step))
        keys = zip(actions.stage[rows].tolist(), actions.kind[rows].tolist(), strict=True)
        numbers = _counted(actions, rows)
        orders.append(tuple(Action(s, Kind(k), n) for (s, k), n in zip(keys, numbers, strict=True)))
    return tuple(orders)


def _counted(actions: Actions, rows: Ints) -> list[int]:
    """Return the micro-batches as marked. If marks repeat a number within a step (rounds), later rounds count on."""
    written = actions.micro_batch[rows]
    kinds = {kind: place for place, kind in enumerate(Kind)}
    kind = np.array([kinds[Kind(k)] for k in actions.kind[rows].tolist()], np.int64)
    code = (actions.stage[rows] * len(kinds) + kind).astype(np.int64)
    repeat = occurrence(code * (int(written.max(initial=0)) + 1) + written, actions.start_ns[rows])
    return [int(number) for number in written + repeat * (int(written.max(initial=0)) + 1)]


# The schedule: the known schedule whose order is most similar to the actions', and its bubble without losses.


_LIKE_ENOUGH = 0.8


@dataclass(frozen=True, slots=True)
class Guess:
    """The most similar schedule, and its similarity: the share of positions with the same action."""

    schedule: Schedule | None
    likeness: float
    declared: str = ""


@dataclass(frozen=True, slots=True)
class Ideal:
    """Bubbles of the order that ran, simulated without losses; NaN if the order cannot be simulated.

    `measured` uses each stage's own median durations, `balanced` their mean over stages. The difference is the cost of
    uneven stages.
    """

    measured: float
    balanced: float
    textbook: float
    line: Timeline | None = None
    """Ideal time of each action with the measured durations; ranks are positions in the pipeline."""


def shape_of(observed: Order) -> Shape:
    """Return the number of ranks, micro-batches and stages per rank in an order."""
    stages = {action.stage for actions in observed for action in actions}
    numbers = {action.micro_batch for actions in observed for action in actions}
    return Shape(len(observed), len(numbers), max(1, round(len(stages) / max(1, len(observed)))))


def guess(observed: Order, declared: str) -> Guess:
    """Return the schedule whose order is most similar to the observed one, or the declared one if none is similar."""
    shape, best = shape_of(observed), Guess(None, 0.0, declared)
    for schedule in Schedule:
        try:
            candidate = order(schedule, shape)
        except UsageError:
            continue
        likeness = _likeness(observed, candidate)
        if likeness > best.likeness:
            best = Guess(schedule, likeness, declared)
    return best if best.likeness >= _LIKE_ENOUGH else Guess(schedule_by_name(declared), best.likeness, declared)


def _likeness(observed: Order, candidate: Order) -> float:
    equal = sum(
        a == b
        for observed_actions, candidate_actions in zip(observed, candidate, strict=True)
        for a, b in zip(observed_actions, candidate_actions, strict=False)
    )
    return equal / max(1, *(sum(map(len, actions_of_ranks)) for actions_of_ranks in (observed, candidate)))


def ideal(observed: Order, actions: Actions, guessed: Guess) -> Ideal:
    """Simulate the observed order with the measured durations."""
    by_stage = _durations(actions)
    shape = shape_of(observed)
    textbook = guessed.schedule.traits.bubble(shape) if guessed.schedule else float("nan")
    by_kind: dict[Kind, list[int]] = {}
    for (_, kind), ns in by_stage.items():
        by_kind.setdefault(kind, []).append(ns)
    mean_ns = {kind: round(sum(of_stages) / len(of_stages)) for kind, of_stages in by_kind.items()}
    try:
        line = simulate(observed, lambda action: by_stage[action.stage, action.kind])
        balanced = simulate(observed, lambda action: mean_ns[action.kind])
        return Ideal(line.bubble_fraction, balanced.bubble_fraction, textbook, line)
    except UsageError:  # actions are missing: ranks not read, or a step cut by the window
        return Ideal(float("nan"), float("nan"), textbook)


def _durations(actions: Actions) -> dict[tuple[int, Kind], int]:
    durations = {}
    for stage in np.unique(actions.stage).tolist():
        for kind in Kind:
            rows = (actions.stage == stage) & (actions.kind == str(kind))
            if rows.any():
                durations[stage, kind] = int(np.median(actions.busy_ns[rows]))
    return durations
