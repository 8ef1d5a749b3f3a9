from __future__ import annotations

import math

from usp_prof.analyses.critical_path import PATH_FRACTION
from usp_prof.gate.series import WHOLE_RUN, from_values, with_derived
from usp_prof.model.metric import Better, Metric, Unit, Value

STEP = Metric("step_time", Unit.NS, Better.LOWER, "Step", "", ("rank", "step"))
IDLE = Metric("idle_time", Unit.NS, Better.LOWER, "Idle", "", ("rank", "step", "cause"))
CALLS = Metric("calls", Unit.COUNT, Better.NEITHER, "Calls", "", ("rank", "axis"))
PEAK = Metric("peak_memory", Unit.BYTES, Better.LOWER, "Peak", "", ("rank",))
MFU = Metric("mfu", Unit.FRACTION, Better.HIGHER, "MFU", "")


def test_the_metric_determines_how_ranks_are_combined() -> None:
    folded = from_values(
        [
            Value(STEP, 10, {"rank": 0, "step": 1}),
            Value(STEP, 14, {"rank": 1, "step": 1}),
            Value(STEP, 12, {"rank": 0, "step": 2}),
            Value(STEP, 99, {}),
            Value(CALLS, 3, {"rank": 0, "axis": "dp"}),
            Value(CALLS, 4, {"rank": 1, "axis": "dp"}),
            Value(PEAK, 7, {"rank": 0}),
            Value(PEAK, 9, {"rank": 1}),
        ]
    )
    assert {one_series.key: (one_series.steps, one_series.samples) for one_series in folded} == {
        "calls[axis=dp]": ((WHOLE_RUN,), (7.0,)),
        "peak_memory": ((WHOLE_RUN,), (9.0,)),
        "step_time": ((1, 2), (12.0, 12.0)),
    }
    assert [one_series.exact for one_series in folded] == [True, False, False]
    assert [one_series.per_step for one_series in folded] == [False, False, True]


def test_shares_divided_among_ranks_are_not_averaged() -> None:
    folded = from_values(
        [
            Value(PATH_FRACTION, 0.9, {"rank": 0}),
            Value(PATH_FRACTION, 0.1, {"rank": 1}),
            Value(PATH_FRACTION, 0.7, {"part": "compute"}),
        ]
    )
    assert [one_series.key for one_series in folded] == ["critical_path_fraction[part=compute]"]


def test_the_runs_own_value_wins_over_its_ranks() -> None:
    (series,) = from_values([Value(STEP, 10, {"rank": 0, "step": 1}), Value(STEP, 30, {"step": 1})])
    assert series.samples == (30.0,)


def test_an_unknown_value_is_not_a_sample() -> None:
    assert from_values([Value(MFU, math.nan)]) == ()


def test_times_become_shares_of_the_step() -> None:
    derived = with_derived(
        from_values(
            [
                Value(STEP, 10, {"rank": 0, "step": 1}),
                Value(STEP, 20, {"rank": 0, "step": 2}),
                Value(IDLE, 1, {"rank": 0, "step": 1, "cause": "host"}),
                Value(IDLE, 4, {"rank": 0, "step": 2, "cause": "host"}),
            ]
        )
    )
    share = next(one_series for one_series in derived if one_series.metric == "idle_fraction")
    assert (share.key, share.samples, share.unit) == ("idle_fraction[cause=host]", (0.1, 0.2), Unit.FRACTION)


def test_without_steps_there_are_no_shares() -> None:
    series = from_values([Value(IDLE, 1, {"rank": 0, "step": 1})])
    assert with_derived(series) == series
