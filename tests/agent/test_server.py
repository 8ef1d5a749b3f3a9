"""`usp-prof mcp` over stdio with the package's own client: it diagnoses a recorded run and refuses other requests."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

from usp_prof.extras.agent.server import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp.types import CallToolResult

    Ask = Callable[..., CallToolResult]

ROOT = Path(__file__).parents[2]
SLOW, REPAIRED = "recorded-slow-rank", "recorded-slow-rank-repaired"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Client]]:
    """Start one server for the module, as an agent does."""
    words = ["-m", "usp_prof.cli.app", "mcp", "traces", "--cache-dir", str(tmp_path_factory.mktemp("cache"))]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as connected:
        yield portal, connected


@pytest.fixture(scope="module")
def call(client: tuple[Any, Client]) -> Ask:
    portal, connected = client
    return lambda tool, **arguments: portal.call(partial(connected.call_tool, tool, arguments))


@pytest.fixture(scope="module")
def ask(call: Ask) -> Callable[..., dict[str, Any]]:
    """Call a tool and return its reply."""

    def call_tool(tool: str, **arguments: object) -> dict[str, Any]:
        result = call(tool, **arguments)
        assert not result.is_error, result.content
        assert result.structured_content == json.loads(result.content[0].text)
        return json.loads(result.content[0].text)

    return call_tool


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_all_tools_are_listed_documented_and_read_only(client: tuple[Any, Client]) -> None:
    portal, connected = client
    tools = portal.call(connected.list_tools).tools
    assert [tool.name for tool in tools] == list(TOOLS)
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)


def test_runs_are_listed_and_opened_by_their_listed_path(ask: Callable[..., dict[str, Any]]) -> None:
    files_by_path = {row["path"]: row["files"] for row in rows_of(ask("open")["tables"][0])}
    assert files_by_path[SLOW] == 4
    assert "4 ranks, dp=4" in ask("open", path=SLOW)["says"]


def test_every_figure_of_the_summary_has_a_unit(ask: Callable[..., dict[str, Any]]) -> None:
    reply = ask("summary", path=SLOW)
    assert "median step takes" in reply["says"]
    assert all(row["unit"] for row in rows_of(reply["tables"][0]))


def test_answers_explain_their_metrics(ask: Callable[..., dict[str, Any]]) -> None:
    metrics, ranks = ask("summary", path=SLOW, question="stragglers")["tables"]
    assert all(row["unit"] and row["meaning"] for row in rows_of(metrics))
    assert rows_of(ranks)[0]["rank"] == 2


def test_a_diagnosis_leads_from_finding_to_proof_to_predicted_gain(
    ask: Callable[..., dict[str, Any]],
) -> None:
    first, *other_findings = rows_of(ask("findings", path=SLOW)["tables"][0])
    assert (first["code"], first["where"], first["is_noise"]) == ("slow-rank", "rank 2", False)
    assert [finding["part_of"] for finding in other_findings] == [1]  # it is late because it is slow: one cause

    proof = ask("evidence", path=SLOW, finding=first["number"], rows=2)["tables"][1]
    assert [row["rank"] for row in rows_of(proof)] == [2, 2]
    assert proof["more"]
    assert "SELECT" in proof["source"]

    predicted = rows_of(ask("whatif", path=SLOW, edits=[first["edit"]])["tables"][0])[0]
    assert predicted["gain_fraction"] == pytest.approx(first["gain_fraction"])

    compared = ask("compare", before=SLOW, after=REPAIRED, rows=5)  # the same job, recorded without the fault
    measured = float(compared["says"].partition("% shorter")[0].split()[-1]) / 100
    assert measured == pytest.approx(predicted["gain_fraction"], abs=predicted["error_fraction"])
    assert len(compared["tables"][0]["rows"]) == 5


def test_sql_covers_all_ranks_and_returns_numbers(ask: Callable[..., dict[str, Any]]) -> None:
    reply = ask("sql", path=SLOW, query="SELECT rank, sum(dur_ns) AS ops_ns FROM ops GROUP BY rank", rows=3)
    table = reply["tables"][0]
    assert [len(table["rows"]), table["more"]] == [3, True]
    assert all(isinstance(row["ops_ns"], int) for row in rows_of(table))


def test_an_empty_sql_result_is_reported_with_a_hint_for_cpu_runs(ask: Callable[..., dict[str, Any]]) -> None:
    reply = ask("sql", path=SLOW, query="SELECT name FROM kernels")
    assert reply["says"] == "The query returned no rows."
    assert reply["notes"] == ["The traces have no GPU events: `kernels` is empty, compute is in `activities`."]


def test_tables_and_their_columns_are_documented(ask: Callable[..., dict[str, Any]]) -> None:
    assert "steps" in {row["table"] for row in rows_of(ask("tables")["tables"][0])}
    columns = {row["column"]: row["unit"] for row in rows_of(ask("tables", name="steps")["tables"][0])}
    assert columns["start_ns"] == "ns"


def test_whatif_without_an_edit_lists_all_edits(ask: Callable[..., dict[str, Any]]) -> None:
    assert "rank_as_peers" in {row["edit"] for row in rows_of(ask("whatif", path=SLOW)["tables"][0])}


def test_a_plan_keeps_pinned_settings_and_states_that_it_was_not_measured(ask: Callable[..., dict[str, Any]]) -> None:
    question = {"model": "Llama-3-8B", "device": "H100", "devices": 8, "batch": 64, "sequence": 4096}
    table = ask("plan", **question, pinned={"tp": 8}, rows=2)["tables"][0]
    assert {row["tp"] for row in rows_of(table)} == {8}
    assert "nothing was measured" in table["source"]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("open", {"path": "../docs"}, "is outside"),
        ("open", {"path": str(ROOT / "docs")}, "is outside"),
        ("open", {"path": "s3://bucket/run"}, "is a URL"),
        ("summary", {"path": f"{SLOW}/../../docs"}, "is outside"),
        ("summary", {"path": SLOW, "question": "straglers"}, "did you mean stragglers"),
        ("findings", {"path": "nothing"}, "does not exist"),
        ("evidence", {"path": SLOW, "finding": 9}, "there is no finding 9"),
        ("sql", {"path": SLOW, "query": "DROP TABLE steps"}, "only a single SELECT"),
        ("sql", {"path": SLOW, "query": "SELECT * FROM read_text('/etc/hostname')"}, "disabled"),
        ("tables", {"name": "step"}, "did you mean steps"),
        ("whatif", {"path": SLOW, "edits": ["rank_as_peer=2"]}, "rank_as_peers"),
        ("compare", {"before": SLOW, "after": "/etc"}, "is outside"),
        ("summary", {}, "path: field required"),
        ("sql", {"path": SLOW, "query": "SELECT * FROM duckdb_settings()"}, "SQL can read the tables only"),
        ("plan", {"model": "Llama-3-8B", "device": "H100", "devices": 10**12, "batch": 8}, "devices is 1 to"),
        ("plan", {"model": "/etc/hostname", "device": "H100", "devices": 8, "batch": 8}, "is outside"),
        ("plan", {"model": "../pyproject.json", "device": "H100", "devices": 8, "batch": 8}, "is outside"),
    ],
)
def test_refusals_have_a_hint(call: Ask, tool: str, arguments: dict[str, Any], message: str) -> None:
    result = call(tool, **arguments)
    assert result.is_error
    assert message in result.content[0].text
    assert "hint: " in result.content[0].text
    assert os.linesep + "Traceback" not in result.content[0].text


def test_an_error_does_not_repeat_a_long_argument(call: Ask) -> None:
    """A query of 100,000 characters came back in the error."""
    result = call("sql", path=SLOW, query="a" * 100_000)
    assert result.is_error
    assert len(result.content[0].text) < 1_500
    assert "hint: " in result.content[0].text
