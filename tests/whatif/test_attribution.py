"""Attribution: the fault's own place has the whole loss."""

from __future__ import annotations

import json

import pytest
from made_faults import run_with
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.step_times import unedited
from usp_prof.report.answers.job_slowdown import NO_LOSS, json_of_run, section_of_run
from usp_prof.report.writers.terminal import sections_text
from usp_prof.whatif.attribution import Slowdown, slowdown
from usp_prof.whatif.predict import predict


def text_of(result: Slowdown) -> str:
    return sections_text("a run", [section_of_run(result)], color=False, width=120)


@pytest.mark.parametrize(("fault", "dimension", "name"), [("slow_rank", "rank", "1"), ("slow_link", "axis", "dp")])
def test_the_fault_explains_the_loss(fault: str, dimension: str, name: str) -> None:
    result = slowdown(run_with(fault).tables)
    assert result.slowdown is not None
    assert result.slowdown > 1.05
    first = next(part for part in result.parts if part.dimension == dimension)
    assert first.name == name
    assert first.share == pytest.approx(1, abs=0.05)
    other_shares = [part.share for part in result.parts if part.dimension == dimension and part.name != name]
    assert all(abs(share) < 0.05 for share in other_shares)


def test_a_run_at_its_ideal_has_no_loss_to_attribute() -> None:
    result = slowdown(run_with("clean").tables)
    assert result.slowdown == pytest.approx(1, abs=0.01)
    assert result.parts == ()
    assert NO_LOSS in text_of(result)
    assert json.loads(json_of_run(result))["parts"] == []


def test_a_run_with_a_loss_has_all_kinds_of_parts() -> None:
    assert {part.dimension for part in slowdown(run_with("slow_rank").tables).parts} == {
        "rank",
        "stage",
        "axis",
        "kind",
    }


def test_a_run_with_nothing_to_idealize_is_accepted() -> None:
    trace = Trace()
    for step in range(3):
        trace.step(step, step * 100_000, 100_000).memcpy(
            step * 100_000 + 5_000, 50_000, launch_at=step * 100_000 + 1_000
        )
    result = slowdown(table_set({0: trace}))
    assert result.parts == ()
    assert result.slowdown == 1
    assert NO_LOSS in text_of(result)


def test_without_device_work_it_states_what_is_missing() -> None:
    """A trace of launches without their kernels once printed nan."""
    result = slowdown(table_set({0: Trace().step(1, 0, 100_000).launch(1, 1_000)}))
    assert result.slowdown is None
    assert "no device work" in text_of(result)
    data = json.loads(json_of_run(result))
    assert (data["step_ns"], data["ideal_ns"], data["slowdown"]) == (None, None, None)
    assert "no device work" in data["unknown"]


def test_one_kind_of_action_can_be_idealized() -> None:
    tables = run_with("slow_rank").tables
    clean = unedited(run_with("clean").tables).mean_measured_ns
    backward = predict(tables, [parse_edit("ideal,kind=B")]).after_ns
    assert clean < backward < unedited(tables).mean_measured_ns
