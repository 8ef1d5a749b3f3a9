"""Search: every legal configuration of a model on a number of devices, predicted together and ranked by speed.

Configurations are columns from the start (`usp_prof.model.configuration.Columns`): a million of them are checked,
compared with the memory and timed in a few array operations. Only those shown become records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.rows import group_codes
from usp_prof.extras.planner import memory
from usp_prof.extras.planner.candidates import configuration_of, legal, nearest_legal, needs, refined, rule_against
from usp_prof.extras.planner.cases import cases_of, concatenated, rows_of
from usp_prof.extras.planner.choice import Barred, barred
from usp_prof.extras.planner.launch import refusal_of_layout
from usp_prof.extras.planner.predict import Prediction, records
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.stages import stages_of
from usp_prof.extras.planner.step import step
from usp_prof.model.configuration import Columns, Configuration, Offload
from usp_prof.model.errors import UsageError

EQUAL = 1.005
"""Steps with a smaller ratio count as equal."""
_NOT_READ = frozenset({"micro_batch", "micro_batches", "gradient_bytes"})
"""Knobs that no trainer's rule reads."""
SHOWN = 1000
"""Number of fastest plans that become records, in addition to the fastest per set of degrees and the Pareto front."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Configurations that a trainer cannot run for one reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Plans:
    """Search result: plans that fit, fastest first; numbers tried and fitting; the lowest need if none fits."""

    question: Question
    best: tuple[Prediction, ...]
    tried: int
    fitting: int
    leanest_bytes: int
    barred: tuple[Barred, ...] = ()
    """Values of knobs with which nothing fits."""
    refused: tuple[Refused, ...] = ()
    """Configurations that the question's trainer cannot run, by reason."""

    def pareto(self) -> tuple[Prediction, ...]:
        """Return the plans that no other beats in both speed and memory, fastest first; see `EQUAL`."""
        front: list[Prediction] = []
        for plan in sorted(self.best, key=lambda plan: (speed_class(plan), plan.footprint.total_bytes)):
            if not front or plan.footprint.total_bytes < front[-1].footprint.total_bytes:
                front.append(plan)
        return tuple(front)


def search(question: Question) -> Plans:
    """Evaluate every legal configuration; the optimizer is offloaded if that is pinned, or nothing fits without it."""
    columns = legal(question)
    tried = len(columns.dp)
    if not tried:
        raise _nothing_legal(question)
    refused: tuple[Refused, ...] = ()
    if question.trainer:
        can_run, refused = startable(question, columns)
        if not can_run.any():
            return replace(search(replace(question, trainer="")), refused=refused)
        columns = rows_of(columns, np.flatnonzero(can_run))
    cases = question.cases(columns)
    stages, room = stages_of(cases), question.cluster.room_bytes
    need = needs(cases, stages)
    fits = need <= room
    further, further_need = refined(cases, stages, need, room)
    if not fits.any() and not len(further_need) and "offload" not in question.pinned:
        return _with_offload(question, len(columns.dp), float(need.min()))
    if question.trainer:
        rows = np.flatnonzero(startable(question, further)[0])
        further, further_need = rows_of(further, rows), further_need[rows]
    ruled_out = barred(columns, need, fits)
    fits &= ~_recomputes_needlessly(columns, fits)
    fitting = concatenated(rows_of(columns, np.flatnonzero(fits)), further)
    fitting_need = np.append(need[fits], further_need)
    return Plans(
        question,
        best=_best(question, fitting, fitting_need),
        tried=tried + len(further_need),
        fitting=len(fitting_need),
        leanest_bytes=int(np.append(need, further_need).min()),
        barred=ruled_out,
        refused=refused,
    )


def _nothing_legal(question: Question) -> UsageError:
    nearest, rule = nearest_legal(question), rule_against(question)
    hint = f"use {nearest}" if nearest else "choose another number of devices, or set fewer options"
    if rule:
        return UsageError(rule, hint=hint if nearest else "change one of these settings")
    pinned = ", ".join(f"{name} {value}" for name, value in question.pinned.items())
    unequal = f"no legal configuration divides {question.batch} sequences among {question.devices} devices"
    return UsageError(unequal + (f" with {pinned}" if pinned else ""), hint=hint)


def _best(question: Question, fitting: Columns, need: NDArray[np.float64]) -> tuple[Prediction, ...]:
    """Return the plans to show, in order; `fitting` are the configurations that fit, and `need` is their memory."""
    if not len(need):
        return ()
    cases = question.cases(fitting)
    rows = _shown(step(cases).expected, need, fitting)
    configurations = [configuration_of(fitting, row, question.dtype) for row in rows.tolist()]
    shown = cases_of(cases.shape, cases.machine, cases.profile, configurations)
    predictions = records(shown, configurations, [question.model] * len(configurations), question.convention)
    return tuple(sorted(predictions, key=_rank))


def search_both(question: Question) -> Plans:
    """Search all legal configurations, and separately those that the question's trainer can run.

    The fastest of all may include few that the trainer can run, and not the fastest of these.
    """
    everything = search(replace(question, trainer=""))
    if not question.trainer:
        return everything
    of_trainer = search(question)
    best = {plan.configuration: plan for plan in (*everything.best, *of_trainer.best)}
    return replace(
        everything,
        question=question,
        best=tuple(sorted(best.values(), key=_rank)),
        fitting=max(everything.fitting, len(best)),
        refused=of_trainer.refused,
    )


def startable(question: Question, columns: Columns) -> tuple[NDArray[np.bool_], tuple[Refused, ...]]:
    """Mark the rows that the question's trainer can run, and count the reasons for the others, most frequent first.

    Rows that differ only in knobs that no rule reads are checked once.
    """
    rows = len(columns.dp)
    names = [field.name for field in fields(Columns) if field.name not in _NOT_READ]
    code = group_codes(*(np.broadcast_to(getattr(columns, name), rows) for name in names))
    _, first = np.unique(code, return_index=True)
    configurations = [configuration_of(columns, row, question.dtype) for row in first.tolist()]
    reasons = [refusal_of_layout(question.trainer, question.model, configuration) for configuration in configurations]
    can_run = np.array([not reason for reason in reasons], bool)
    counted: Counter[str] = Counter()
    for reason, count in zip(reasons, np.bincount(code).tolist(), strict=True):
        counted[reason] += count
    del counted[""]
    return can_run[code], tuple(Refused(*reason_and_count) for reason_and_count in counted.most_common())


def _with_offload(question: Question, tried: int, leanest: float) -> Plans:
    """Repeat the search with the optimizer in host memory, because nothing fits without; results are marked as such."""
    offloaded = search(replace(question, pinned={**question.pinned, "offload": Offload.OPTIMIZER}))
    barrier = (Barred("offload", Offload.NONE, tried, leanest),) if offloaded.best else ()
    return replace(offloaded, question=question, tried=tried + offloaded.tried, barred=(*barrier, *offloaded.barred))


def _recomputes_needlessly(c: Columns, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark rows that recompute although the same configuration fits with less recomputation, which is never slower.

    Rows that differ only in recomputation are adjacent, with the least first (see `legal`).
    """
    alike = np.ones(len(fits), bool)
    alike[0] = False
    for name in (declared.name for declared in fields(Columns)):
        if name != "recompute":
            column = np.broadcast_to(getattr(c, name), fits.shape)
            alike[1:] &= column[1:] == column[:-1]
    group = np.cumsum(~alike)
    first = np.full(group[-1] + 1, len(fits))
    np.minimum.at(first, group[fits], np.flatnonzero(fits))
    return fits & (np.arange(len(fits)) > first[group])  # type: ignore[no-any-return]


def _shown(seconds: NDArray[np.float64], need: NDArray[np.float64], c: Columns) -> NDArray[np.int64]:
    """Select the fastest plans, the fastest of each set of degrees, and the Pareto front of speed and memory."""
    order = np.lexsort((need, seconds))
    # In order of speed: the lowest memory of all faster plans. A plan that needs less is on the front.
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(need[order])[:-1]])
    front = order[need[order] < least_before]
    degrees = np.stack([np.asarray(getattr(c, name))[order] for name in ("dp", "tp", "cp", "pp", "ep", "zero")])
    _, firsts = np.unique(degrees, axis=1, return_index=True)
    return np.unique(np.concatenate([order[:SHOWN], order[firsts[:SHOWN]], front[:SHOWN]]))


def speed_class(plan: Prediction) -> int:
    """Return the number of a class of steps that count as equal; lower is faster."""
    return round(log(plan.expected_step_ns) / log(EQUAL))


def _rank(plan: Prediction) -> tuple[int, bool, int, int, int, int, str]:
    """Return the sort key. Among equally fast plans, tight ones are last, and simpler ones are first.

    A plan is simpler with fewer parallel axes, then with more data parallelism, then with a lower ZeRO stage. If that
    is equal too, the plan that needs less memory is first.
    """
    c = plan.configuration
    axes = sum(degree > 1 for degree in c.degrees().values())
    is_tight = plan.fit_probability < memory.SAFE_PROBABILITY
    return speed_class(plan), is_tight, axes, c.devices // c.dp, c.zero, plan.footprint.total_bytes, str(c)


def configurations(question: Question) -> list[Configuration]:
    """Return the legal configurations, each once."""
    columns = legal(question)
    return [configuration_of(columns, row, question.dtype) for row in range(len(columns.dp))]


GRID_AXES = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch")
"""Possible axes of a map of plans."""
