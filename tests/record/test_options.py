from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from usp_prof.record.options import Content, Declared, Options, Phase, Window, resolve


def test_options_are_grouped_by_topic() -> None:
    settings = resolve({"active": 3, "stack": True, "schedule": "1F1B"})
    assert settings.window == Window(active=3)
    assert settings.content == Content(stack=True)
    assert settings.declared == Declared(schedule="1F1B")


def test_every_option_is_declared_for_type_checkers() -> None:
    assert set(Options.__annotations__) == {
        field.name for kind in (Window, Content, Declared) for field in fields(kind)
    }


def test_an_unknown_option_suggests_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"'warm_up'; did you mean warmup"):
        resolve({"warm_up": 2})
    with pytest.raises(TypeError, match=r"'zzz'$"):
        resolve({"zzz": 2})


@pytest.mark.parametrize("wrong", [{"active": 0}, {"wait": -1}])
def test_a_window_that_records_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Window(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"sequence": -5}, {"tokens_per_step": -1}, {"zero_stage": -2}, {"gather_timeout": -1.0}]
)
def test_a_size_below_zero_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} cannot be below"):
        resolve(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"active": "2"}, "active is a whole number, not '2'"),
        ({"active": True}, "active is a whole number, not True"),
        ({"micro_batches": 1.5}, "micro_batches is a whole number, not 1.5"),
        ({"peak_flops": math.nan}, "peak_flops is a number, not nan"),
        ({"peak_flops": math.inf}, "peak_flops is a number, not inf"),
        ({"schedule": 3}, "schedule is a string, not 3"),
        ({"shapes": "no"}, "shapes is True or False, not 'no'"),
        ({"stages": 3}, "stages is a list, not 3"),
        ({"stages": "ab"}, "stages is a list, not 'ab'"),
        ({"stages": ["a"]}, r"stages\[0\] is a whole number, not 'a'"),
        ({"coordinates": "x"}, "coordinates is a mapping, not 'x'"),
        ({"coordinates": {"dp": "a"}}, r"coordinates\['dp'\] is a whole number, not 'a'"),
        ({"faults": [3]}, r"faults\[0\] is a mapping, not 3"),
        ({"options": "x"}, "options is a mapping, not 'x'"),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        resolve(wrong)


def test_numbers_of_numpy_and_missing_values_are_accepted() -> None:
    settings = resolve({"active": np.int64(3), "stages": range(2), "peak_flops": 10, "skip": None, "schedule": None})
    assert settings.window == Window(active=3)
    assert settings.declared == Declared(stages=[0, 1], peak_flops=10.0)
    assert type(settings.window.active) is int


def test_the_last_step_covers_all_windows() -> None:
    assert Window(skip=2, wait=1, warmup=1, active=3, repeat=2).last_step == 12


def test_each_step_belongs_to_a_phase() -> None:
    window = Window(skip=2, wait=1, warmup=1, active=2, repeat=2)
    letters = "".join(window.place(step)[0][0] for step in range(12))
    assert letters == "ii" + "iwrr" + "iwrr" + "ii"
    ends = [window.place(step)[1] for step in range(12)]
    assert ends == [2, 2, 3, 4, 6, 6, 7, 8, 10, 10, -1, -1]


def test_windows_without_pause_or_warm_up_follow_each_other() -> None:
    window = Window(wait=0, warmup=0, active=2, repeat=0)
    assert [window.place(step) for step in range(4)] == [(Phase.RECORD, 2)] * 2 + [(Phase.RECORD, 4)] * 2
