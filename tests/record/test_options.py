from __future__ import annotations

from dataclasses import fields

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
