"""What each part costs: the fault's own place has the whole loss."""

from __future__ import annotations

import pytest
from made_faults import run_with

from usp_prof.model.edit import parse_edit
from usp_prof.whatif.attribution import slowdown
from usp_prof.whatif.predict import predict, unedited


@pytest.mark.parametrize(("fault", "what", "name"), [("slow_rank", "rank", "1"), ("slow_link", "axis", "dp")])
def test_the_fault_explains_the_loss(fault: str, what: str, name: str) -> None:
    found = slowdown(run_with(fault).tables)
    assert found.slowdown > 1.05
    first = next(part for part in found.parts if part.what == what)
    assert first.name == name
    assert first.share == pytest.approx(1, abs=0.05)
    others = [part.share for part in found.parts if part.what == what and part.name != name]
    assert all(abs(share) < 0.05 for share in others)


def test_a_clean_run_is_near_its_ideal() -> None:
    found = slowdown(run_with("clean").tables)
    assert 0.99 < found.slowdown < 1.02
    assert {part.what for part in found.parts} == {"rank", "stage", "axis", "kind"}


def test_one_kind_of_action_alone() -> None:
    tables = run_with("slow_rank").tables
    clean = unedited(run_with("clean").tables).mean_measured_ns
    backward = predict(tables, [parse_edit("ideal,kind=B")]).after_ns
    assert clean < backward < unedited(tables).mean_measured_ns
