"""Noise between runs of one configuration: the prior that counts until enough baseline runs show it.

One run tells how its steps differ, never how the next run would. What is assumed follows from the machine: an
accelerator runs this job and nothing else, so that runs differ by a fraction of what steps do; processors are shared
with whatever else the host does, which moves whole runs as much as it moves steps. The steps of the two runs that are
compared say how much that is. Several baseline runs replace the assumption by what they show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.gate.facts import FactKind
from usp_prof.gate.sample import boil_down
from usp_prof.gate.series import STEP_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from usp_prof.gate.facts import Fact
    from usp_prof.gate.measured import Measured


class Machine(StrEnum):
    """What else may run where the step runs."""

    DEDICATED = "dedicated"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Prior:
    """What is assumed of the spread between runs (standard deviation): this share of the spread of the steps.

    It weighs as much as `worth` runs: the fewer, the wider the interval of a single pair, and the sooner measured runs
    rule. From `enough` baseline runs on they alone count.
    """

    share: float
    worth: float
    enough: float = math.inf


PRIORS: Mapping[Machine, Prior] = {Machine.DEDICATED: Prior(0.2, 8.0), Machine.SHARED: Prior(2.0, 4.0, 4)}
"""The default policy; `benchmarks/README.md` has the false alarms and the power of both."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The prior of a check, and the spread of the step times of its runs as a fraction of the step.

    A figure that there is once a run (a rate over all steps) shows no spread of its own: it is taken to vary like the
    step.
    """

    machine: Machine
    prior: Prior
    step_spread: float


def machine_of(facts: Iterable[Fact]) -> Machine:
    """Say what kind of machine a run was made on; one that did not say is taken to be shared."""
    told = {fact.name: fact.value for fact in facts if fact.kind is FactKind.HARDWARE}
    alone = told.get("processes per device", "1") == "1"
    return Machine.DEDICATED if told.get("device", "cpu") != "cpu" and alone else Machine.SHARED


def noise_of(runs: Sequence[Measured], priors: Mapping[Machine, Prior]) -> Noise:
    """Choose the prior for runs that are compared with each other: the wider where any of them asks for it."""
    machines = {machine_of(run.facts) for run in runs}
    machine = Machine.DEDICATED if machines == {Machine.DEDICATED} else Machine.SHARED
    return Noise(machine, priors[machine], max((_spread(run) for run in runs), default=0.0))


def _spread(run: Measured) -> float:
    steps = run.by_key().get(STEP_TIME)
    if steps is None or len(steps.samples) < 2:
        return 0.0
    sample = boil_down(steps.samples, steps.steps)
    return sample.spread / sample.centre if sample.centre > 0 else 0.0
