"""Gains of many changes are those of each alone; some steps of a long run give the same gains as all."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_faults import long_run_with, run_with

from usp_prof.findings import find_all
from usp_prof.findings.catalogue import all_rules
from usp_prof.findings.inputs import damage
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UspProfError
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.gains import Gain, gains, gains_in_turn
from usp_prof.whatif.predict import predict

EDITS = ["rank_as_peers=1", "comm_faster=2,axis=dp", "no_launch_gaps", "schedule=zb-h1", "no_input_wait"]
CLOSE = 0.002
"""What a gain from some steps may be off: 0.2 points of the step."""


@pytest.mark.parametrize("style", ["nccl", "gloo"])
def test_gains_of_a_short_run_are_the_predictions(style: str) -> None:
    tables = run_with("slow_rank", style).tables
    edits = [parse_edit(text) for text in EDITS]
    for edit, found in zip(edits, gains(tables, edits), strict=True):
        wanted = predict(tables, [edit])
        assert found == Gain(wanted.gain_fraction, wanted.basis, wanted.error_fraction)


def test_gains_in_turn_are_the_predictions_of_all_up_to_each() -> None:
    tables = run_with("slow_rank").tables
    edits = [parse_edit(text) for text in EDITS]
    joined = accumulate(([edit] for edit in edits), lambda before, more: [*before, *more])
    for some, found in zip(joined, gains_in_turn(tables, as_recorded(tables), edits), strict=True):
        wanted = predict(tables, some)
        assert found == Gain(wanted.gain_fraction, wanted.basis, wanted.error_fraction)


def test_what_cannot_be_predicted_is_an_error_among_gains() -> None:
    tables = run_with("clean").tables
    edits = [parse_edit(text) for text in ("rank_as_peers=99", "comm_faster=2", "micro_batches=0")]
    alone, in_turn = list(gains(tables, edits)), list(gains_in_turn(tables, as_recorded(tables), edits))
    assert [isinstance(found, UspProfError) for found in alone] == [True, False, True]
    assert [isinstance(found, UspProfError) for found in in_turn] == [True, False, True]
    assert in_turn[1] == alone[1]


@settings(max_examples=8, deadline=None)
@given(least=st.lists(st.sampled_from([-1.0, 0.0, 0.01, 0.05, 0.5, 2.0]), min_size=len(EDITS), max_size=len(EDITS)))
def test_gains_that_are_too_small_lack_nothing_but_their_error(least: list[float]) -> None:
    tables, edits = run_with("slow_rank").tables, [parse_edit(text) for text in EDITS]
    for how in (gains, lambda tables, *more: gains_in_turn(tables, as_recorded(tables), *more)):
        for wanted, full, found in zip(least, how(tables, edits), how(tables, edits, least), strict=True):
            assert isinstance(full, Gain)
            assert isinstance(found, Gain)
            assert found == (
                full if full.gain_fraction >= wanted else replace(full, error_fraction=found.error_fraction)
            )


def test_findings_are_those_of_all_drafts_whose_gains_are_worked_out_in_full() -> None:
    """What `search` leaves out of its replays is below what a rule wants at least."""
    tables = run_with("slow_rank").tables
    drafts = [
        draft for rule in all_rules() if not damage(tables, getattr(rule, "NEEDS", ())) for draft in rule.look(tables)
    ]
    worth = {
        str(draft.edit): gain
        for draft, gain in zip(drafts, gains(tables, [draft.edit for draft in drafts]), strict=True)
        if isinstance(gain, Gain) and gain.gain_fraction >= draft.least_gain
    }
    found = {each.edit: (each.gain_fraction, each.error_fraction) for each in find_all(tables).findings}
    assert found == {edit: (gain.gain_fraction, gain.error_fraction) for edit, gain in worth.items()}
    assert len(worth) < len(drafts)


@pytest.mark.parametrize("fault", ["slow_rank", "late_input"])
def test_some_steps_of_a_long_run_give_the_gains_of_all(fault: str) -> None:
    tables = long_run_with(fault).tables
    edits = [parse_edit(text) for text in EDITS if not text.startswith("schedule")]
    found = list(gains(tables, edits))
    assert any(isinstance(gain, Gain) and gain.sampled for gain in found)
    for edit, gain in zip(edits, found, strict=True):
        assert isinstance(gain, Gain)
        assert gain.gain_fraction == pytest.approx(predict(tables, [edit]).gain_fraction, abs=CLOSE)


def test_a_pause_in_one_step_is_replayed_in_all() -> None:
    tables = long_run_with("one_pause").tables
    edits = [parse_edit("no_pauses"), parse_edit("comm_faster=2,axis=dp")]
    pause, faster = gains(tables, edits)
    assert isinstance(pause, Gain)
    assert isinstance(faster, Gain)
    assert not pause.sampled
    assert faster.sampled
    assert pause.gain_fraction == predict(tables, edits[:1]).gain_fraction > 0.01


def test_a_moved_pipeline_takes_another_order_as_the_whole_replay_has_it() -> None:
    tables = long_run_with("slow_rank").tables
    edits = [parse_edit("rank_as_peers=1"), parse_edit("schedule=zb-h1")]
    first, both = gains_in_turn(tables, as_recorded(tables), edits)
    assert isinstance(first, Gain)
    assert isinstance(both, Gain)
    assert not first.sampled  # its graph was replayed as a whole for the other
    assert both.gain_fraction == pytest.approx(predict(tables, edits).gain_fraction, abs=CLOSE)


def test_the_report_says_which_gains_were_sampled() -> None:
    rows = {row.code: row for row in find_all(long_run_with("slow_rank").tables).skipped}
    assert "from 18 of 60 steps" in rows["gains_sampled"].detail
    assert "gains_sampled" not in {row.code for row in find_all(run_with("slow_rank").tables).skipped}
