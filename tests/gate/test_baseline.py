from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gate_runs import measured, series

from usp_prof.gate.measured import Baseline, Damage, SeenFinding, Work, load, save
from usp_prof.model.errors import InputError
from usp_prof.model.finding import Level
from usp_prof.model.health import Severity

if TYPE_CHECKING:
    from pathlib import Path

RUN = measured(
    series("step_time", [1.5, 2.5]),
    damage=(Damage("x", Severity.INFO),),
    findings=(SeenFinding("C", Level.NOTE, "t"),),
    work=(Work("op", "aten::mm", "[1]", "", 2.0, 1.0),),
)


def test_a_saved_baseline_loads_and_saves_the_same_bytes(tmp_path: Path) -> None:
    save(Baseline((RUN, RUN)), tmp_path / "a.json")
    again = load(tmp_path / "a.json")
    assert again == Baseline((RUN, RUN))
    save(again, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a baseline"),
        ('{"runs": []}', "not a baseline"),
        ('{"runs": 3}', "not a baseline"),
        ('{"format": "other", "runs": []}', "not a baseline"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path / "x.json")
    assert "baseline save" in error.value.hint


def test_baselines_of_later_versions_are_refused(tmp_path: Path) -> None:
    save(Baseline((RUN,), version=99), tmp_path / "x.json")
    (tmp_path / "y.json").write_text('{"format": "usp-prof-baseline", "version": 2, "runs": {"by": "name"}}')
    for name in ("x.json", "y.json"):
        with pytest.raises(InputError, match="later") as error:
            load(tmp_path / name)
        assert "update" in error.value.hint


def test_unreadable_and_unwritable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot write"):
        save(Baseline((RUN,)), tmp_path / "no" / "x.json")
