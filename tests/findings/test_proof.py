"""Proof of findings: each has a SELECT that `usp-prof query` accepts, with the culprit in its rows; a case per rule."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from made_faults import run_of, run_with
from made_pairs import PAIRS, PLAIN
from tiny import Trace, table_set

from usp_prof.findings import all_rules, rule
from usp_prof.findings.proof import MOST, equals
from usp_prof.findings.rules.hosts import HostPause
from usp_prof.findings.rules.links import SlowLink
from usp_prof.findings.rules.slow_ranks import SlowRank
from usp_prof.model.finding import Finding
from usp_prof.report.words import finding_lines
from usp_prof.tables.relations import Relations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from usp_prof.findings.draft import Draft
    from usp_prof.tables.table_set import TableSet

pytestmark = pytest.mark.slow

HEAVY_HEAD = {"speed": {"head_ns": 800_000}}
MANY_SMALL = {"mesh": {"dp": 4}, "work": {"zero_stage": 3}, "shape": {"layers": 12, "hidden": 32, "sequence": 64}}


def launched_one_by_one() -> TableSet:
    """Make a device that waits for every launch."""
    trace = Trace()
    for number in range(20):
        trace.kernel("gemm", number * 100_000 + 10_000, 10_000, launch_at=number * 100_000)
    return table_set({0: trace})


def declared(declaration: Mapping[str, Any]) -> Callable[[], TableSet]:
    return lambda: run_of(json.dumps(declaration)).tables


def with_fault(name: str) -> Callable[[], TableSet]:
    return lambda: run_with(name).tables


CASES: dict[str, Callable[[], TableSet]] = {
    **{name: declared(faulty) for name, (faulty, _, _) in PAIRS.items()},
    "slow_rank": with_fault("slow_rank"),
    "late_rank": with_fault("slow_rank"),
    "slow_link": with_fault("slow_link"),
    "late_input": with_fault("late_input"),
    "host_pause": with_fault("gc_pause"),
    "pipeline_schedule": with_fault("clean"),
    "exposed_gradient_sync": declared({"work": {"overlap_dp": False}, "mesh": {"dp": 4}}),
    "exposed_tensor_parallel": declared(PAIRS["wide_tensor_parallel"][0]),
    "small_messages": declared(MANY_SMALL),
    "slow_op": declared(PLAIN),
    "stage_imbalance": declared(HEAVY_HEAD),
    "host_bound": launched_one_by_one,
}
ELSEWHERE = {"slowed_compute", "shared_cores"}
"""Rules whose case is made event by event, in the test files of their names."""


def proving_rows(tables: TableSet, draft: Draft) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Relations(tables).answer(draft.rows).to_pylist()
    return rows


def names_culprit(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Return whether a row belongs to the place that a finding names."""
    place = {name: where[name] for name in ("rank", "axis", "group", "stage") if name in where}
    cells = dict(row) | ({"rank": row["late_rank"]} if "late_rank" in row else {})
    return all(cells.get(name, value) == value for name, value in place.items())


def test_each_rule_has_a_case() -> None:
    assert set(CASES) | ELSEWHERE == {known_rule.CODE.replace("-", "_") for known_rule in all_rules()}


@pytest.mark.parametrize("name", CASES)
def test_the_culprit_is_among_the_rows(name: str) -> None:
    tables = CASES[name]()
    drafts = list(rule(name.replace("_", "-")).look(tables))
    assert drafts
    for draft in drafts:
        rows = proving_rows(tables, draft)
        assert any(names_culprit(row, draft.where) for row in rows), (draft.where, rows[:3])


def test_the_rows_of_a_slow_link_start_with_its_calls() -> None:
    tables = run_with("slow_link").tables
    (draft,) = SlowLink.look(tables)
    assert proving_rows(tables, draft)[0]["group"] == draft.where["group"]


def test_a_slow_rank_computes_longest() -> None:
    tables = run_with("slow_rank").tables
    (draft,) = SlowRank.look(tables)
    rows = proving_rows(tables, draft)
    steps = len(tables.columns("steps", 0))
    assert {row["rank"] for row in rows[:steps]} == {draft.where["rank"]}


def test_the_rows_of_a_pause_are_the_pauses_themselves() -> None:
    """The rows used to be the launches after the pauses, 50 us each."""
    tables = run_with("gc_pause").tables
    (draft,) = HostPause.look(tables)
    rows = proving_rows(tables, draft)
    assert len(rows) == min(draft.evidence["pauses"], MOST)
    assert rows[0]["dur_ns"] == draft.evidence["longest_ns"]
    assert [row["dur_ns"] for row in rows] == sorted((row["dur_ns"] for row in rows), reverse=True)
    assert (rows[0]["rank"], rows[0]["step"]) == (draft.where["rank"], draft.where["step"])
    assert rows[0]["next_name"]


def test_a_finding_can_include_the_query_of_its_rows() -> None:
    finding = Finding("slow-rank", "rank 2 is slow", {}, {}, rows="SELECT 1")
    assert finding_lines(finding, proof=True)[-1] == "usp-prof query: SELECT 1"
    assert "SELECT" not in " ".join(finding_lines(finding))


def test_names_with_quotes_are_escaped_in_queries() -> None:
    assert equals("name", "it's") == "\"name\" = 'it''s'"
