"""Which configuration trains fastest on so many devices and fits? All legal ones are predicted and ranked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

from usp_prof.model.configuration import Configuration, Recompute, broken_rule
from usp_prof.model.errors import UsageError
from usp_prof.planner.prediction import Prediction, predict
from usp_prof.whatif.reordering.stages import worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from usp_prof.contract import ModelEntry
    from usp_prof.planner.cluster import Cluster

SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("zbv", 2))
"""The schedules tried where there is a pipeline, with their stages on a rank."""
MICRO_BATCHES = (1, 2, 4, 8)
EQUAL = 1.005
"""Steps whose ratio is smaller count as equally long."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned: `batch` counts sequences of a step over all devices."""

    model: ModelEntry
    cluster: Cluster
    devices: int
    batch: int
    dtype: str = "bf16"
    convention: str = "palm"
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plans:
    """What was found: the plans that fit, fastest first; how many were tried; the leanest where none fits."""

    question: Question
    best: tuple[Prediction, ...]
    tried: int
    leanest_bytes: int

    def pareto(self) -> tuple[Prediction, ...]:
        """Give the plans that no other beats in both speed and memory, fastest first."""
        found: list[Prediction] = []
        for plan in self.best:
            if not found or plan.footprint.total_bytes < found[-1].footprint.total_bytes:
                found.append(plan)
        return tuple(found)


def search(question: Question, progress: Callable[[int, int], None] | None = None) -> Plans:
    """Try every legal configuration; `progress` hears how many of those that fit have been predicted."""
    legal = list(configurations(question))
    if not legal:
        raise UsageError(
            f"no legal configuration spreads {question.batch} sequences over {question.devices} devices",
            hint="choose a batch that the number of devices divides, or other devices",
        )
    needed = [worst(question.model, each, gradient_bytes=question.gradient_bytes).total_bytes for each in legal]
    fitting = [each for each, size in zip(legal, needed, strict=True) if size <= question.cluster.room_bytes]
    fitting = _without_needless_recomputation(fitting)
    found = sorted(_predicted(question, fitting, progress), key=_rank)
    return Plans(question, tuple(found), len(legal), min(needed))


def _without_needless_recomputation(fitting: Sequence[Configuration]) -> list[Configuration]:
    """Drop what recomputes although the same configuration fits without: it is never faster."""
    there = set(fitting)
    return [
        each
        for each in fitting
        if each.recompute is Recompute.NONE or replace(each, recompute=Recompute.NONE) not in there
    ]


def _rank(plan: Prediction) -> tuple[int, int, int, int, str]:
    """Order by speed; within half a percent, which nothing here can tell apart, the simpler, then the leaner first."""
    c = plan.configuration
    axes = sum(degree > 1 for degree in c.degrees().values())
    return round(log(plan.step_ns) / log(EQUAL)), axes, c.devices // c.dp, plan.footprint.total_bytes, str(c)


def configurations(question: Question) -> Iterator[Configuration]:
    """List the legal configurations, each once."""
    model, devices = question.model, question.devices
    for pp in _divisors(devices):
        for tp in _divisors(devices // pp):
            for cp in _divisors(devices // pp // tp):
                dp = devices // (pp * tp * cp)
                for candidate in _variants(question, dp=dp, tp=tp, cp=cp, pp=pp):
                    if not broken_rule(model, candidate):
                        yield candidate


def grid(plans: Plans, rows: str, columns: str) -> dict[tuple[int, int], Prediction]:
    """Give the fastest plan for each pair of degrees, such as rows `tp` and columns `pp`."""
    found: dict[tuple[int, int], Prediction] = {}
    for plan in plans.best:
        degrees = {**plan.configuration.degrees(), **_counts(plan.configuration)}
        found.setdefault((degrees[rows], degrees[columns]), plan)
    return found


GRID_AXES = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch")
"""What a grid may have on its sides."""


def _counts(configuration: Configuration) -> dict[str, int]:
    return {"zero": configuration.zero, "micro_batch": configuration.micro_batch}


def _variants(question: Question, *, dp: int, tp: int, cp: int, pp: int) -> Iterator[Configuration]:
    for size in MICRO_BATCHES:
        if question.batch % (dp * size):
            continue
        number = question.batch // (dp * size)
        experts = _divisors(dp * cp) if question.model.experts else (1,)
        for ep in experts:
            for zero in (0, 1, 3) if dp * cp > 1 else (0,):
                for schedule, chunks in SCHEDULES if pp > 1 else SCHEDULES[:1]:
                    if zero == 3 and schedule == "zbv":  # the third gather, before the weights' half, is not modelled
                        continue
                    if number < pp * chunks and pp > 1:
                        continue
                    for recompute in (Recompute.NONE, Recompute.FULL):
                        yield Configuration(
                            dp, tp, cp, pp, ep, zero, size, number, schedule, chunks, recompute, question.dtype
                        )


def _predicted(
    question: Question, fitting: Sequence[Configuration], progress: Callable[[int, int], None] | None
) -> Iterable[Prediction]:
    for done, each in enumerate(fitting, start=1):
        yield predict(question.model, each, question.cluster, question.convention, question.gradient_bytes)
        if progress is not None:
            progress(done, len(fitting))


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)
