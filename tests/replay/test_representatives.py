"""Representatives: which replicas represent all, with the same results as for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof import open_run
from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write
from usp_prof.findings.draft import skipped_sentence
from usp_prof.findings.engine import find_all
from usp_prof.findings.search import search
from usp_prof.model.edit import parse_edit
from usp_prof.replay import representatives as chosen
from usp_prof.replay.build import graph_of
from usp_prof.replay.representatives import representatives
from usp_prof.replay.step_times import unedited
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

DP, TP, PP = 6, 2, 2
SLOW_RANK = {"kind": "slow_rank", "rank": 5, "factor": 1.5}
FAULTS = {
    "slow-rank": {"faults": [SLOW_RANK]},
    "slow-link": {"faults": [{"kind": "slow_link", "rank": 5, "axis": "tp", "factor": 8.0}]},
    "stage-imbalance": {"speed": {"last_stage_factor": 1.6}},
}


def opened(folder: Path, dp: int = DP, tp: int = TP, pp: int = PP, events: int = 600, **options: object) -> Run:
    """Write and open a synthetic run with several replicas, on hosts of eight ranks with separate clocks."""
    declared = {
        "mesh": {"dp": dp, "tp": tp, "pp": pp},
        "work": {"steps": 3, "micro_batches": 4},
        "clocks": {"ranks_per_host": 8, "offset_ns": [0, 7_000_000, -3_000_000, 11_000_000]},
    }
    write(with_events(Declaration.from_dict(declared | options), events), folder / "run")
    return open_run(folder / "run", cache_dir=folder / "store")


def nodes_of(run: Run, share: float) -> int:
    """Return the number of nodes in this share of a run."""
    return round(len(graph_of(run.tables).nodes) * share)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Open a run of six replicas, of which one has a slow rank."""
    return opened(tmp_path_factory.mktemp("replicas"), **FAULTS["slow-rank"])


class TestWhichRanks:
    """Replicas are replayed completely, the late ones first."""

    def test_a_run_within_the_bound_is_replayed_whole(self, run: Run) -> None:
        assert representatives(run.tables).tables is run.tables
        assert representatives(run.tables).note is None

    def test_the_late_replica_and_ordinary_ones_are_taken_with_all_their_ranks(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", nodes_of(run, 0.6))
        ranks = representatives(run.tables).tables.ranks
        assert len(ranks) == 3 * TP * PP
        assert SLOW_RANK["rank"] in ranks
        # Ranks are ordered by tp, then dp, then pp; a replica is one coordinate on dp.
        places = {rank // TP % DP for rank in ranks}
        assert set(ranks) == {rank for rank in run.ranks if rank // TP % DP in places}

    def test_three_replicas_are_taken_however_low_the_bound(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", 1)
        assert len(representatives(run.tables).tables.ranks) == 3 * TP * PP

    def test_ranks_that_were_asked_for_come_before_ordinary_ones(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", 1)
        for rank in run.ranks:
            chosen_ranks = representatives(run.tables, [rank]).tables.ranks
            assert {rank, SLOW_RANK["rank"]} <= set(chosen_ranks)
            assert len(chosen_ranks) == 3 * TP * PP

    def test_one_replica_alone_is_replayed_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", 1)
        tables = opened(tmp_path, dp=1, events=300).tables
        assert representatives(tables).tables is tables


class TestWhatTheyKeep:
    """Clocks and calls as measured on all ranks."""

    def test_clocks_and_calls_are_those_of_all_ranks(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", nodes_of(run, 0.6))
        part = representatives(run.tables).tables
        assert clock.fit_clocks(part) is clock.fit_clocks(run.tables)
        calls_of_part, calls_of_run = calls.match_calls(part), calls.match_calls(run.tables)
        assert calls_of_part.columns()["complete"].all()
        for rank in part.ranks:
            assert (
                calls_of_part.parts.of_rank(rank, "wait_ns")["wait_ns"]
                == calls_of_run.parts.of_rank(rank, "wait_ns")["wait_ns"]
            ).all()
        assert set(calls_of_part.columns()["late_rank"].tolist()) <= {-1, *part.ranks}

    def test_their_replay_is_what_was_measured(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chosen, "MOST_NODES", nodes_of(run, 0.6))
        assert unedited(representatives(run.tables).tables).error.max() == 0

    def test_waits_for_ranks_left_out_are_in_the_doubt(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Four late replicas, each in a different step; the limit allows one of them.
        faults = [SLOW_RANK | {"rank": 2 * place, "step": 10 + place % 3, "factor": 2.0} for place in range(4)]
        run = opened(tmp_path, dp=8, tp=1, pp=1, events=400, faults=faults)
        monkeypatch.setattr(chosen, "MOST_NODES", nodes_of(run, 0.4))
        replayed = representatives(run.tables)
        search_result = find_all(run.tables)
        assert replayed.doubt > 0.1
        assert replayed.note in search_result.skipped
        assert "findings and their gains are from 3 of 8 ranks" in skipped_sentence(search_result.skipped)
        assert search_result.findings
        assert min(finding.error_fraction for finding in search_result.findings) > replayed.doubt


@pytest.mark.slow
@pytest.mark.parametrize("code", FAULTS)
def test_representative_ranks_have_the_findings_and_gains_of_all_ranks(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(tmp_path, **FAULTS[code])
    monkeypatch.setattr(chosen, "MOST_NODES", nodes_of(run, 0.6))
    replayed = representatives(run.tables)
    assert len(replayed.tables.ranks) == len(run.ranks) / 2
    results = search(run.tables), search(replayed.tables, doubt=replayed.doubt)
    full, part = (next(finding for finding in result.findings if finding.code == code) for result in results)
    assert dict(part.where) == dict(full.where)
    edits = [parse_edit(finding.edit) for finding in (part, full)]  # their factors are measured
    assert (edits[0].name, edits[0].places) == (edits[1].name, edits[1].places)
    assert abs(part.gain_fraction - full.gain_fraction) <= full.error_fraction
