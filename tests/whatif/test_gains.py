"""Gains of many changes: equal to those predicted for each alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_faults import run_with

from usp_prof.findings import find_all
from usp_prof.findings.draft import damage
from usp_prof.findings.registry import all_rules
from usp_prof.model.edit import Edit, parse_edit
from usp_prof.model.errors import UspProfError
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.predict import Gain, gain_of, predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

EDITS = ["rank_as_peers=1", "comm_faster=2,axis=dp", "no_launch_gaps", "schedule=zb-h1", "no_input_wait"]


def gain_alone(tables: TableSet, edit: Edit, least: float = -inf) -> Gain:
    return gain_of(tables, as_recorded(tables).then(tables, edit), least)


@pytest.mark.parametrize("style", ["nccl", "gloo"])
def test_gains_of_a_short_run_are_the_predictions(style: str) -> None:
    tables = run_with("slow_rank", style).tables
    for edit in map(parse_edit, EDITS):
        wanted = predict(tables, [edit])
        assert gain_alone(tables, edit) == Gain(
            wanted.gain_fraction, wanted.basis, wanted.error_fraction, wanted.before_ns
        )


@pytest.mark.parametrize("edit", ["rank_as_peers=99", "micro_batches=0"])
def test_edits_that_cannot_be_predicted_have_no_gain(edit: str) -> None:
    with pytest.raises(UspProfError):
        gain_alone(run_with("clean").tables, parse_edit(edit))


@settings(max_examples=8, deadline=None)
@given(least=st.lists(st.sampled_from([-1.0, 0.0, 0.01, 0.05, 0.5, 2.0]), min_size=len(EDITS), max_size=len(EDITS)))
def test_gains_below_the_threshold_have_only_a_cheaper_error(least: list[float]) -> None:
    tables = run_with("slow_rank").tables
    for edit, wanted in zip(map(parse_edit, EDITS), least, strict=True):
        full, estimate = gain_alone(tables, edit), gain_alone(tables, edit, wanted)
        assert estimate == (
            full if full.gain_fraction >= wanted else replace(full, error_fraction=estimate.error_fraction)
        )


def test_findings_equal_those_of_a_full_evaluation() -> None:
    """Replays that `search` skips have a gain below the threshold of the rule."""
    tables = run_with("slow_rank").tables
    drafts = [
        draft for rule in all_rules() if not damage(tables, getattr(rule, "NEEDS", ())) for draft in rule.look(tables)
    ]
    gains = {str(draft.edit): gain_alone(tables, draft.edit) for draft in drafts}
    least = {str(draft.edit): draft.least_gain for draft in drafts}
    worth = {edit: gain for edit, gain in gains.items() if gain.gain_fraction >= least[edit]}
    gain_by_edit = {
        finding.edit: (finding.gain_fraction, finding.error_fraction) for finding in find_all(tables).findings
    }
    assert gain_by_edit == {edit: (gain.gain_fraction, gain.error_fraction) for edit, gain in worth.items()}
    assert len(worth) < len(drafts)
