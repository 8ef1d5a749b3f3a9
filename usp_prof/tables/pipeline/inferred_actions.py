"""Inferred actions: pipeline actions of ranks without marks, from the compute between sends and receives.

The ranks of a pipeline are derived from who sends first to whom (`traffic`). Each rank's stretches of forward and
backward work (`stretches`) are compared with the orders of all named schedules. A schedule with the same turns and
sends on every rank determines the stage and micro-batch of each action. In a plain pipeline with another order,
micro-batches are counted, because messages keep their order. Otherwise only the kinds are known. Marks without a stage
(`Forward 3`) get it from the rank's position in the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from usp_prof.columns.table import Columns, View
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Action, Kind, Order, order
from usp_prof.tables import actions
from usp_prof.tables.build import table
from usp_prof.tables.pipeline import stretches
from usp_prof.tables.pipeline.stretches import BACKWARD, FORWARD, Messages, Stretches
from usp_prof.tables.pipeline.traffic import chains
from usp_prof.tables.table_set import ChangedSource, Source

INFERRED = "inferred"
_LIGHT = (0.05, 0.1, 0.2, 0.4)
"""Work of light stretches, as shares of the median; they may be copies, buffers or gradient packing between actions."""


class Inference:
    """Actions of all ranks of a run, completed on first access."""

    def __init__(self, sources: Mapping[int, Source]) -> None:
        self._sources = sources
        self._made: dict[int, pa.Table] | None = None

    def actions_of(self, rank: int) -> pa.Table:
        """Return a rank's actions: as marked, completed, or inferred."""
        if self._made is None:
            self._made = _complete(self._sources)
        return self._made[rank]


def completed(sources: Mapping[int, Source]) -> dict[int, Source]:
    """Wrap each rank's tables so that their actions are completed on demand."""
    inference = Inference(sources)
    return {
        rank: ChangedSource(source, {actions.SCHEMA.name: _Completed(inference, rank)})
        for rank, source in sources.items()
    }


class _Completed:
    """Replaces the marked actions of one rank with the completed ones."""

    def __init__(self, inference: Inference, rank: int) -> None:
        self._inference, self._rank = inference, rank

    def __call__(self, _: View) -> View:
        """Return the rank's completed actions; the first call completes those of all ranks."""
        view: View = self._inference.actions_of(self._rank)
        return view

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle this rank's actions alone, because a worker does not have the other ranks."""
        return partial, (_given, self._inference.actions_of(self._rank))


def _given(made: View, _: View) -> View:
    return made


def _complete(sources: Mapping[int, Source]) -> dict[int, pa.Table]:
    """Return every rank's actions: inferred if there are no marks, completed if marks lack the stage."""
    actions_of_rank = {rank: source.table(actions.SCHEMA.name) for rank, source in sources.items()}
    is_marked = any(len(recorded) for recorded in actions_of_rank.values())
    if is_marked and all((Columns(recorded)["stage"] >= 0).all() for recorded in actions_of_rank.values()):
        return actions_of_rank
    passed = {rank: stretches.messages(source) for rank, source in sources.items()}
    for chain in chains(sources, passed):
        if is_marked:
            for stage, rank in enumerate(chain):
                actions_of_rank[rank] = _with_stage(actions_of_rank[rank], stage)
        else:
            actions_of_rank |= _inferred(sources, passed, chain)
    return actions_of_rank


def _with_stage(actions_table: pa.Table, stage: int) -> pa.Table:
    """Fill in missing stages, unless a micro-batch occurs twice in a step, which means the rank has several stages."""
    columns = Columns(actions_table)
    without = columns["stage"] < 0
    if not without.any():
        return actions_table
    kinds = columns.codes("kind")[0]
    in_step = without & (columns["step"] >= 0)
    # Columns of step, kind and micro-batch, one per action without a stage; all differ if the rank has a single stage.
    keys = np.stack([columns["step"], kinds, columns["micro_batch"]])[:, in_step]
    if np.unique(keys, axis=1).shape[1] < keys.shape[1]:
        return actions_table
    place = actions_table.column_names.index("stage")
    return actions_table.set_column(
        place, actions_table.schema.field(place), [np.where(without, stage, columns["stage"])]
    )


def _inferred(
    sources: Mapping[int, Source], passed: Mapping[int, Messages], chain: tuple[int, ...]
) -> dict[int, pa.Table]:
    """Infer the actions of the ranks of one pipeline, step by step."""
    # All three have one entry per rank of the chain.
    stretches_of_rank = [stretches.stretches(sources[rank], passed[rank]) for rank in chain]
    messages = [passed[rank] for rank in chain]
    labeled: list[list[Labeled]] = [[] for _ in chain]
    for step in sorted({number for of_rank in stretches_of_rank for number in of_rank.step.tolist()}):
        for place, labels in enumerate(_labeled_step(stretches_of_rank, messages, step)):
            labeled[place] += labels
    return {
        rank: _table(rank, stretches_of_rank[place], labeled[place], messages[place])
        for place, rank in enumerate(chain)
    }


def _labeled_step(stretches_of_rank: Sequence[Stretches], passed: Sequence[Messages], step: int) -> list[list[Labeled]]:
    """Label one step, ignoring as little light work as needed to fit an order; if none fits, only the lightest."""
    tried = [
        [
            _observed_turns(*stretches_and_messages, step, share)
            for stretches_and_messages in zip(stretches_of_rank, passed, strict=True)
        ]
        for share in _LIGHT
    ]
    for turns in tried:
        if labels := by_named_order(turns):
            return labels
    return counted(tried[0])


def _observed_turns(of_rank: Stretches, passed: Messages, step: int, share: float) -> list[tuple[int, Turn]]:
    """Return the heavy stretches of a rank in one step, each with its kind and whether a send follows it."""
    rows = of_rank.heavy(share)
    kinds, sends = of_rank.kind[rows], of_rank.sends(rows, passed)
    chosen = np.flatnonzero(of_rank.step[rows] == step)
    return [(int(rows[place]), Turn(int(kinds[place]), bool(sends[place]))) for place in chosen.tolist()]


def _table(rank: int, of_rank: Stretches, labeled: Sequence[Labeled], passed: Messages) -> pa.Table:
    """Build the action table of a rank from labeled stretches; a stretch with several actions is cut into that many."""
    work, arrived = of_rank.work, passed.ended[~passed.sends]
    action_keys = [action for label in labeled for action in label.actions]  # kind, stage and micro-batch
    # Row ranges of each action's work (`high` exclusive); work that ran before the receive arrived is excluded.
    ranges = []
    for label in labeled:
        for low, high in of_rank.pieces(list(label.rows), len(label.actions)):
            ranges.append((of_rank.after_receiving(low, high, arrived), high))
    first = np.array([low for low, _ in ranges], np.int64)
    start = np.array([work.begun[low:high].min() for low, high in ranges], np.int64)
    columns = {
        "rank": rank,
        "event": work.event[first],
        "kind": [kind for kind, _, _ in action_keys],
        "stage": np.array([stage for _, stage, _ in action_keys], np.int64),
        "micro_batch": np.array([number for _, _, number in action_keys], np.int64),
        "start_ns": start,
        "dur_ns": np.array([work.ended[low:high].max() for low, high in ranges], np.int64) - start,
        "device_start_ns": np.array([work.start[low:high].min() for low, high in ranges], np.int64),
        "device_end_ns": np.array([work.end[low:high].max() for low, high in ranges], np.int64),
        "source": INFERRED,
        "step": of_rank.step[np.searchsorted(of_rank.first, first, side="right") - 1],
    }
    return table(actions.SCHEMA, columns, len(ranges))


# Turns: stretches of a step, labeled by the order of the schedule that fits, or counted if none does.

_MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch as an order describes it: forward or backward, and whether a send follows it."""

    kind: int
    sends: bool


@dataclass(frozen=True, slots=True)
class Labeled:
    """Stretches (rows) with their actions, in order; stage and micro-batch are -1 if only the kind is known."""

    rows: tuple[int, ...]
    actions: tuple[tuple[str, int, int], ...]
    """Kind, stage and micro-batch of each action."""


def by_named_order(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[list[Labeled]]:
    """Label the stretches (row and turn) of each rank by the first schedule that fits; return nothing if none does.

    A schedule fits if every rank's groups of turns are those of its order. For example, (F, sends) (F, sends) (B) (B)
    on the first of two ranks fits GPipe with two micro-batches.
    """
    observed = [_grouped(of_rank) for of_rank in turns]
    for candidate in _candidates(turns):
        expected = [_grouped(list(enumerate(_expected_turns(candidate, rank)))) for rank in range(len(candidate))]
        of_ranks = list(zip(observed, expected, candidate, strict=True))
        if all([turn for turn, _ in seen] == [turn for turn, _ in planned] for seen, planned, _ in of_ranks):
            return [_by_order(seen, planned, acts) for seen, planned, acts in of_ranks]
    return []


def _grouped(turns: Sequence[tuple[int, Turn]]) -> list[tuple[Turn, list[int]]]:
    """Merge turns of one kind up to and including a send: the finest units that work and order have in common."""
    groups: list[tuple[Turn, list[int]]] = []
    for row, turn in turns:
        last = groups[-1][0] if groups else None
        if last is not None and last.kind == turn.kind and not last.sends:
            groups[-1] = (turn, [*groups[-1][1], row])
        else:
            groups.append((turn, [row]))
    return groups


def _candidates(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[Order]:
    """Return the orders of all schedules with the observed number of forwards on the first rank."""
    forwards = sum(turn.kind == FORWARD for _, turn in turns[0])
    orders = []
    for chunks in range(1, _MOST_CHUNKS + 1):
        if forwards and forwards % chunks == 0:
            for schedule in Schedule:
                try:
                    orders.append(order(schedule, Shape(len(turns), forwards // chunks, chunks)))
                except UsageError:  # the schedule does not support this shape
                    continue
    return orders


def _expected_turns(candidate: Order, rank: int) -> list[Turn]:
    """Return the turns of one rank in an order."""
    rank_of_stage = {action.stage: place for place, acts in enumerate(candidate) for action in acts}
    return [
        Turn(FORWARD if action.kind is Kind.FORWARD else BACKWARD, _sends(action, rank_of_stage, rank))
        for action in candidate[rank]
    ]


def _sends(action: Action, rank_of_stage: Mapping[int, int], rank: int) -> bool:
    """Return whether an action sends its result to another rank: to the next stage, or in backward the previous one."""
    if action.kind is Kind.WEIGHT_GRADIENT:
        return False
    following = action.stage + (1 if action.kind is Kind.FORWARD else -1)
    return rank_of_stage.get(following, rank) != rank


def _by_order(
    observed: list[tuple[Turn, list[int]]], expected: list[tuple[Turn, list[int]]], acts: Sequence[Action]
) -> list[Labeled]:
    """Label the rows of each observed group with the actions of the expected group at the same position."""
    labels = []
    for (_, rows), (_, places) in zip(observed, expected, strict=True):
        actions = [acts[place] for place in places]
        action_keys = tuple((str(action.kind), action.stage, action.micro_batch) for action in actions)
        labels.append(Labeled(tuple(rows), action_keys))
    return labels


def counted(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[list[Labeled]]:
    """Label a plain pipeline's turns with counted micro-batches, and those of other pipelines with their kind only.

    A pipeline is plain if all ranks have equally many forwards and backwards, and a send follows every turn except the
    last stage's forwards and the first stage's backwards.
    """
    counts = {sum(turn.kind == kind for _, turn in of_rank) for of_rank in turns for kind in (FORWARD, BACKWARD)}
    silent_stage = {FORWARD: len(turns) - 1, BACKWARD: 0}
    is_plain = len(counts) == 1 and all(
        turn.sends == (stage != silent_stage[turn.kind]) for stage, of_rank in enumerate(turns) for _, turn in of_rank
    )
    labels: list[list[Labeled]] = []
    for stage, of_rank in enumerate(turns):
        micro_batch = {FORWARD: 0, BACKWARD: 0}
        of_stage = []
        for row, turn in of_rank:
            kind = str(Kind.FORWARD if turn.kind == FORWARD else Kind.BACKWARD)
            action = (kind, stage, micro_batch[turn.kind]) if is_plain else (kind, -1, -1)
            of_stage.append(Labeled((row,), (action,)))
            micro_batch[turn.kind] += 1
        labels.append(of_stage)
    return labels
