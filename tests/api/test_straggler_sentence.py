"""The sentence on stragglers: what a repair saves decides what is said about lateness."""

from __future__ import annotations

import pytest

from usp_prof.analyses.step_time import STEP_TIME
from usp_prof.analyses.stragglers import STRAGGLER_COST
from usp_prof.api import sentences
from usp_prof.model.finding import REPAIR_GAIN
from usp_prof.model.metric import Value
from usp_prof.report.figures import Figures

MS = 1_000_000


@pytest.mark.parametrize(
    ("late_ms", "gain", "expected"),
    [
        (0.4, None, "No rank delays the others by more than 0.5% of the step."),
        (40, None, "what its repair saves is unknown."),
        (
            40,
            0.4,
            "Rank 1 delays the others by 40.0 ms per step (40.0% of the mean rank step). Repairing it saves 40.0%",
        ),
        (40, 0.3, "summed over its collectives. Repairing it saves 30.0% of the step."),
        (40, 0.1, "Repairing it alone saves 10.0% of the step: something else limits the rest."),
        (40, 0.0, "Repairing it alone saves nothing: something else limits the step."),
        (5, 0.3, "Repairing it saves 30.0% of the step; lateness leaves out sends, receives and other axes."),
    ],
)
def test_lateness_is_called_a_delay_only_if_its_repair_saves_as_much(
    late_ms: float, gain: float | None, expected: str
) -> None:
    values = [Value(STEP_TIME, 100 * MS), Value(STRAGGLER_COST, late_ms * MS, {"rank": 1})]
    values += [Value(REPAIR_GAIN, gain, {"rank": 1})] if gain is not None else []
    assert expected in sentences.stragglers(Figures(values))


@pytest.mark.parametrize("late_ms", [0.4, 20])
def test_a_rank_that_is_late_in_messages_is_named_by_the_gain_of_its_repair(late_ms: float) -> None:
    costs = {1: late_ms * MS, 3: 0.0}
    values = [
        Value(STEP_TIME, 100 * MS),
        *(Value(STRAGGLER_COST, cost, {"rank": rank}) for rank, cost in costs.items()),
    ]
    values += [Value(REPAIR_GAIN, 0.25, {"rank": 3}), Value(REPAIR_GAIN, late_ms / 100, {"rank": 1})]
    sentence = sentences.stragglers(Figures(values))
    assert ("Repairing it saves 20.0% of the step" in sentence) == (late_ms > 1)
    in_messages = "Rank 3 delays the others in sends and receives. Repairing it saves 25.0% of the step."
    assert sentence.endswith(in_messages)
    # The cause of rank 1 stood after the sentence on rank 3.
    with_cause = sentences.stragglers(Figures(values), "host")
    assert with_cause.endswith(f" Cause: host. {in_messages}" if late_ms > 1 else in_messages)
    assert ("Cause: host" in with_cause) == (late_ms > 1)
