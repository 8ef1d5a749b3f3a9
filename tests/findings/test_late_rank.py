"""Late ranks: gain by replay, reported cause, and folding under a more specific finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_faults import run_of, run_with

from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import Why
from usp_prof.analyses.stragglers import Culprit, StragglersResult
from usp_prof.findings import find, find_all
from usp_prof.findings.causes import causes_of
from usp_prof.findings.rules.slow_ranks import CAUSES, LateRank
from usp_prof.model.edit import parse_edit
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

SLEEPING = Path(__file__).parents[2].parent / "shared" / "traces" / "torchrec-4r-sleeping-rank"
TRACES = Path(__file__).parents[2] / "traces"
PLAIN: dict[str, Any] = {"mesh": {"dp": 4}, "work": {"steps": 3, "micro_batches": 2}, "shape": {"layers": 2}}


def blamed(tables: TableSet, monkeypatch: pytest.MonkeyPatch, *culprits: Culprit) -> None:
    """Make the straggler analysis report these culprits."""
    import numpy as np  # noqa: PLC0415

    nothing = np.zeros(0, np.int64)
    result = StragglersResult((), culprits, nothing, nothing, nothing.astype(float), nothing, {})
    monkeypatch.setattr(stragglers, "compute", lambda *_: result)
    assert tables.ranks


def culprit(rank: int, why: Why = Why.HOST, **more: Any) -> Culprit:
    fields = {"steps": (0, 1), "persistent": True, "evidence": {"host": 197, "copies": -2}} | more
    return Culprit(rank, "dp", why, 2e6, 1.01, **fields)


@pytest.mark.parametrize("seed", [3, 4])
def test_the_gain_of_a_late_rank_is_that_of_its_replay(seed: int) -> None:
    fault = {"kind": "late_input", "delay_ns": 15_000_000, "rank": 2}
    tables = run_of(json.dumps(PLAIN | {"seed": seed, "faults": [fault]})).tables
    (late,) = (finding for finding in find(tables) if finding.code == LateRank.CODE)
    replayed = predict(tables, [parse_edit("rank_as_peers=2")])
    assert (late.where["rank"], late.edit) == (2, "rank_as_peers=2")
    assert late.gain_fraction == pytest.approx(replayed.gain_fraction)
    assert late.error_fraction == pytest.approx(replayed.error_fraction)


def test_the_cause_precedes_and_includes_the_late_rank() -> None:
    """The slow rank and its lateness have one cause, so they are one finding."""
    findings = find(run_with("slow_rank").tables)
    first = causes_of(findings).causes[0]
    assert first.finding.code == "slow-rank"
    assert LateRank.CODE in [part.code for part in first.parts]


def test_the_gain_of_a_slow_rank_excludes_host_pauses() -> None:
    """Rank 2 computes a tenth longer, which is small compared with its host's pauses: each finding has its own gain."""
    faults = [
        {"kind": "slow_rank", "rank": 2, "factor": 1.1},
        {"kind": "gc_pause", "rank": 2, "delay_ns": 40_000_000},
    ]
    finding_of_code = {finding.code: finding for finding in find(run_of(json.dumps({"faults": faults})).tables)}
    slow, paused = finding_of_code["slow-rank"], finding_of_code["host-pause"]
    edit = parse_edit(slow.edit)
    assert (edit.name, edit.place("rank"), edit.number()) == ("compute_faster", "2", pytest.approx(1.1, abs=0.01))
    assert 0 < slow.gain_fraction < 0.1 < paused.gain_fraction
    assert list(finding_of_code).index("host-pause") < list(finding_of_code).index("slow-rank")


@pytest.mark.parametrize(
    ("run", "code"), [("recorded-ep-imbalance", "uneven-experts"), ("recorded-ring-contiguous", "uneven-sequence")]
)
def test_a_rank_with_more_work_is_late_because_of_its_work(run: str, code: str) -> None:
    """With its peers' work it would be equally fast, but some rank has to do the work."""
    causes = causes_of(find(open_run(TRACES / run).tables)).causes
    assert [(cause.finding.code, [part.code for part in cause.parts]) for cause in causes] == [(code, [LateRank.CODE])]


@pytest.mark.skipif(not SLEEPING.exists(), reason="the corpus is not here")
def test_a_sleeping_rank_is_a_single_cause() -> None:
    findings = find(open_run(SLEEPING).tables)
    causes = causes_of(findings).causes
    (late,) = (finding for finding in findings if finding.code == LateRank.CODE)
    assert (late.where["rank"], findings[late.part_of].code) == (2, "host-pause")
    assert late.title.endswith("its host pauses")
    assert [cause.finding.code for cause in causes if cause.finding.where.get("rank") == 2] == ["host-pause"]
    assert late.gain_fraction == pytest.approx(findings[late.part_of].gain_fraction, abs=late.error_fraction)


def test_a_straggler_whose_repair_gains_nothing_is_not_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank waits for rank 1 here, whatever the analysis reports: repairing rank 1 leaves the step unchanged."""
    tables = run_with("clean").tables
    blamed(tables, monkeypatch, culprit(1))
    assert LateRank.CODE not in [finding.code for finding in find_all(tables).findings]


@pytest.mark.parametrize("why", list(Why))
def test_every_cause_has_a_title_and_advice(why: Why, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = run_with("clean").tables
    blamed(tables, monkeypatch, culprit(1, why, persistent=False))
    (draft,) = LateRank.look(tables)
    assert draft.title == f"Rank 1 is late for dp collectives in some steps: {CAUSES[why]}"
    assert draft.advice
    assert draft.evidence["host_over_peers_ns"] == 197
    assert draft.evidence["steps"] == "0, 1"


def test_a_rank_without_peers_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = run_of('{"mesh": {"pp": 2}}').tables
    blamed(tables, monkeypatch, culprit(1))
    assert list(LateRank.look(tables)) == []
