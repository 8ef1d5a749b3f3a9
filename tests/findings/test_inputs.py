"""Damaged inputs of a rule: it is skipped, and the report gives the reason."""

from __future__ import annotations

import pytest
from made import run, step, work
from made_faults import run_with

from usp_prof.findings import find_all
from usp_prof.findings.draft import DAMAGES, Input, damage, skipped_sentence
from usp_prof.model.health import HealthRow, Severity

STEP = {"steps": [step(0, 0, 100)], "activities": [work("compute", 0, 100)]}


def test_a_complete_run_is_not_damaged() -> None:
    assert damage(run_with("clean").tables, set(Input) - {Input.MEMORY}) == ""


@pytest.mark.parametrize("code", DAMAGES)
def test_lost_events_exclude_the_comparison_of_ranks(code: str) -> None:
    tables = run({0: STEP, 1: STEP})
    assert damage(tables, (Input.ALL_RANKS,)) == ""
    tables.health.append(HealthRow(code, Severity.DATA_LOSS, rank=1, detail="the file ends early"))
    reason = damage(tables, (Input.ALL_RANKS,))
    assert reason == f"needs complete traces of all ranks ({code} of rank 1)"


def test_informational_health_rows_are_not_damage() -> None:
    tables = run({0: STEP})
    tables.health.append(HealthRow("missing_ranks", Severity.INFO))
    assert damage(tables, Input) == "needs allocator events (none were recorded; record with profile_memory=True)"


def test_unconnected_clocks_are_damage() -> None:
    tables = run({0: {**STEP, "ranks": [{"host": "a"}]}, 1: {**STEP, "ranks": [{"host": "b"}]}})
    assert "clocks of 2 sets" in damage(tables, (Input.ONE_CLOCK,))


def test_missing_launches_are_damage() -> None:
    kernels = [{"event": n, "name": "k", "start_ns": n, "dur_ns": 1, "launch_event": -1} for n in range(4)]
    tables = run({0: {**STEP, "kernels": kernels}})
    assert damage(tables, (Input.LAUNCHES,)) == "needs launches of device work (4 of 4 have no launch in the trace)"
    tables.health.append(HealthRow("steps_by_host", Severity.ERROR))
    assert damage(tables, (Input.LAUNCHES,)) == "needs launches of device work (steps_by_host)"


def test_missing_shapes_are_damage() -> None:
    tables = run({0: {**STEP, "ops": [{"event": 1, "name": "aten::mm", "start_ns": 0, "dur_ns": 1, "input_dims": ""}]}})
    assert "record_shapes=True" in damage(tables, (Input.SHAPES,))


def test_a_skipped_rule_states_why_and_other_rules_run() -> None:
    tables = run({0: STEP, 1: STEP})
    tables.health.append(HealthRow("truncated", Severity.DATA_LOSS, rank=1, detail="cut short"))
    search_result = find_all(tables)
    rows = [row for row in search_result.skipped if "truncated of rank 1" in row.detail]
    skipped = [rule for row in rows for rule in row.detail.partition("; rules skipped: ")[2].split(", ")]
    assert {"slow-rank", "uneven-experts", "few-micro-batches"} <= set(skipped)
    assert "host-pause" not in skipped
    assert sum(row.count for row in rows) == len(skipped)
    assert skipped_sentence(search_result.skipped).startswith(f"{len(skipped)} rules skipped for lack of complete")
    assert not skipped_sentence(())


def test_a_rule_whose_change_cannot_be_made_is_not_said_to_lack_input() -> None:
    rows = [HealthRow("rules_skipped", Severity.INFO, detail="rank 1 has no peers; rules skipped: late-rank")]
    assert skipped_sentence(rows) == "1 rule skipped because rank 1 has no peers"
