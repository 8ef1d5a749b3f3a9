"""Joint gains: those of the edits replayed together, where one failing edit does not affect the others."""

from __future__ import annotations

import pytest
from made_faults import run_with

from usp_prof.findings.search import together
from usp_prof.model.edit import parse_edit
from usp_prof.whatif.predict import predict

GOOD = [parse_edit("rank_as_peers=1"), parse_edit("comm_faster=2,axis=dp"), parse_edit("no_pauses")]
IMPOSSIBLE = parse_edit("comm_faster=0,axis=dp")


def test_each_cumulative_gain_covers_all_findings_so_far() -> None:
    tables = run_with("slow_rank").tables
    alone = predict(tables, GOOD[:1]).gain_fraction
    joint = together(tables, GOOD, alone)
    assert joint.gains == (alone, *(predict(tables, GOOD[:count]).gain_fraction for count in (2, 3)))
    assert not joint.left_out


@pytest.mark.parametrize("place", [1, 2, 3])
def test_changes_that_cannot_be_combined_are_left_out(place: int) -> None:
    tables = run_with("slow_rank").tables
    alone = predict(tables, GOOD[:1]).gain_fraction
    gains = together(tables, GOOD, alone).gains
    edits = [*GOOD[:place], IMPOSSIBLE, *GOOD[place:]]
    joint = together(tables, edits, alone)
    assert joint.gains == (*gains[:place], gains[place - 1], *gains[place:])
    assert list(joint.left_out) == [place]


def test_without_findings_there_are_no_cumulative_gains() -> None:
    assert together(run_with("clean").tables, [], 0.0).gains == ()
