"""Gains of many changes are those that each is predicted to have alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_faults import run_with

from usp_prof.findings import find_all
from usp_prof.findings.draft import all_rules, damage
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UspProfError
from usp_prof.whatif.predict import Gain, gains, predict

EDITS = ["rank_as_peers=1", "comm_faster=2,axis=dp", "no_launch_gaps", "schedule=zb-h1", "no_input_wait"]
NO_LEAST = [-inf] * len(EDITS)


@pytest.mark.parametrize("style", ["nccl", "gloo"])
def test_gains_of_a_short_run_are_the_predictions(style: str) -> None:
    tables = run_with("slow_rank", style).tables
    edits = [parse_edit(text) for text in EDITS]
    for edit, found in zip(edits, gains(tables, edits, NO_LEAST), strict=True):
        wanted = predict(tables, [edit])
        assert found == Gain(wanted.gain_fraction, wanted.basis, wanted.error_fraction)


def test_what_cannot_be_predicted_is_an_error_among_gains() -> None:
    tables = run_with("clean").tables
    edits = [parse_edit(text) for text in ("rank_as_peers=99", "comm_faster=2", "micro_batches=0")]
    alone = gains(tables, edits, [0.0] * 3)
    assert [isinstance(found, UspProfError) for found in alone] == [True, False, True]


@settings(max_examples=8, deadline=None)
@given(least=st.lists(st.sampled_from([-1.0, 0.0, 0.01, 0.05, 0.5, 2.0]), min_size=len(EDITS), max_size=len(EDITS)))
def test_gains_that_are_too_small_lack_nothing_but_their_error(least: list[float]) -> None:
    tables, edits = run_with("slow_rank").tables, [parse_edit(text) for text in EDITS]
    for wanted, full, found in zip(least, gains(tables, edits, NO_LEAST), gains(tables, edits, least), strict=True):
        assert isinstance(full, Gain)
        assert isinstance(found, Gain)
        assert found == (full if full.gain_fraction >= wanted else replace(full, error_fraction=found.error_fraction))


def test_findings_are_those_of_all_drafts_whose_gains_are_worked_out_in_full() -> None:
    """What `search` leaves out of its replays is below what a rule wants at least."""
    tables = run_with("slow_rank").tables
    drafts = [
        draft for rule in all_rules() if not damage(tables, getattr(rule, "NEEDS", ())) for draft in rule.look(tables)
    ]
    floors = [-inf] * len(drafts)
    worth = {
        str(draft.edit): gain
        for draft, gain in zip(drafts, gains(tables, [draft.edit for draft in drafts], floors), strict=True)
        if isinstance(gain, Gain) and gain.gain_fraction >= draft.least_gain
    }
    found = {each.edit: (each.gain_fraction, each.error_fraction) for each in find_all(tables).findings}
    assert found == {edit: (gain.gain_fraction, gain.error_fraction) for edit, gain in worth.items()}
    assert len(worth) < len(drafts)
