"""How is a straggler's verdict said?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from usp_prof.analyses._causes import Why
from usp_prof.analyses.stragglers import Culprit, StragglersResult
from usp_prof.model.finding import Basis, Level
from usp_prof.report.verdicts import CODE, verdicts

CULPRIT = Culprit(6, "tp", Why.SLOW_HOST, 135_000_000.4, 0.22, 1.01, (3, 4), True, {"slow host": 197, "copies": -2})


def result(*culprits: Culprit) -> StragglersResult:
    nothing = np.zeros(0, np.int64)
    return StragglersResult((), culprits, nothing, nothing, nothing.astype(float), nothing, {})


def test_a_culprit_is_a_finding_with_its_cost_as_a_bound() -> None:
    (finding,) = verdicts({"stragglers": result(CULPRIT)})
    assert finding.code == CODE
    assert finding.title == "rank 6 is late for tp calls, 135 ms a step: slow host"
    assert dict(finding.where) == {"rank": 6, "axis": "tp"}
    assert finding.gain_fraction == finding.cumulative_gain_fraction == 0.22
    assert finding.basis is Basis.BOUND
    assert finding.level is Level.CRITICAL
    assert finding.evidence["slow_host_over_peers_ns"] == 197
    assert finding.evidence["steps"] == "3, 4"


def test_a_small_or_passing_lateness_is_said_so() -> None:
    (finding,) = verdicts({"stragglers": result(replace(CULPRIT, step_fraction=0.03, persistent=False))})
    assert finding.level is Level.WARNING
    assert "in some steps" in finding.title


@pytest.mark.parametrize("why", list(Why))
def test_every_cause_has_its_advice(why: Why) -> None:
    (finding,) = verdicts({"stragglers": result(replace(CULPRIT, why=why))})
    assert finding.advice
    assert finding.title.endswith("does not show why" if why is Why.UNKNOWN else str(why))


def test_without_the_analysis_nothing_is_said() -> None:
    assert verdicts({}) == ()
