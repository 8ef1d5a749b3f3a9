"""What-if on a run: the predicted gain of a change."""

from __future__ import annotations

import pytest
from made_faults import run_with

from usp_prof.model.errors import UsageError


def test_a_run_predicts_itself_with_edits() -> None:
    run = run_with("slow_rank")
    predicted = run.whatif("rank_as_peers=1")
    assert 0.1 < predicted.gain_fraction < 0.3
    assert predicted.after_ns < predicted.before_ns
    assert run.whatif("rank_as_peers=1", "comm_faster=2,axis=dp").gain_fraction >= predicted.gain_fraction
    with pytest.raises(UsageError, match="not an edit"):
        run.whatif("rank as peers")
