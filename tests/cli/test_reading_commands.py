"""Output and exit codes of info, query, tables, export and cache."""

from __future__ import annotations

import collections
import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny
import zstandard

from usp_prof.cli.app import main
from usp_prof.cli.opening import parse_rank_numbers
from usp_prof.model.errors import UsageError
from usp_prof.run import open_run
from usp_prof.tables import catalog


def trace(rank: int) -> tiny.Trace:
    made = tiny.Trace(rank, 2).group("1", [0, 1], "mesh_tp").step(3, at=0, dur=10_000).step(4, at=10_000, dur=10_000)
    made.op("aten::mm", at=100, dur=500).kernel("gemm", at=1_000, dur=2_000, launch_at=200)
    made.kernel("overlapping", at=2_500, dur=2_000, launch_at=300).kernel("late", at=12_000, dur=10, launch_at=11_000)
    return made.collective("all_reduce", at=6_000, dur=1_000, launch_at=700, group="1", nelems=64)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    return str(tiny.write({0: trace(0), 1: trace(1)}, tmp_path / "run"))


@pytest.mark.parametrize("width", ["80", "200"])
def test_info_shows_the_run_at_any_width(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["info", run]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= int(width) for line in out.splitlines())
    assert "\x1b" not in out
    for words in ("ranks    2", "tp 2", "2 (from 3 to 4)", "NVIDIA Tiny", "nccl", "rank0.json.gz"):
        assert words in out


def test_info_as_json(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(run) / "et.json").write_text('{"schema": "1", "nodes": []}')
    assert main(["info", run, "--format", "json", "--ranks", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in data["ranks"]] == [1]
    assert (data["ranks"][0]["kernels"], data["ranks"][0]["copies"]) == (4, 0)
    assert {"code", "severity", "rank", "count", "detail", "file"} == set(data["health"][0])


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT * FROM kernel", "no table is named 'kernel'\nhint: did you mean kernels? (`usp-prof tables`"),
        ("SELECT * FROM kernels WHERE", 'the SQL cannot be read: Parser Error: syntax error at or near "WHERE"\nhint'),
    ],
)
def test_a_refused_query_states_why_in_one_line(
    run: str, capsys: pytest.CaptureFixture[str], sql: str, error: str
) -> None:
    assert main(["query", run, sql]) == 2
    assert error in capsys.readouterr().err


def test_info_lists_the_worst_health_first(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(run) / "rank1.json.gz"
    file.write_bytes(file.read_bytes()[:-40])
    assert main(["info", run]) == 0
    text = capsys.readouterr().out
    severities = re.findall(r"^(data_loss|error|info) [a-z_]+", text, re.MULTILINE)
    assert severities[0] == "data_loss"
    assert severities == sorted(severities, key=["data_loss", "error", "info"].index)
    assert re.search(r"^data_loss truncated \(rank 1\): [\d,]+ complete events are kept", text, re.MULTILINE)


def test_info_names_a_single_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_step = tiny.Trace().step(3, at=0, dur=10_000).kernel("gemm", at=1_000, dur=2_000, launch_at=200)
    tiny.write({0: one_step}, tmp_path / "run")
    assert main(["info", str(tmp_path / "run"), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert "steps    1 (step 3)" in capsys.readouterr().out


def test_query_writes_every_format(run: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sql = "SELECT rank, count(*) AS n FROM kernels GROUP BY rank ORDER BY rank"
    assert main(["query", run, sql]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["rank", "n"], ["0", "4"], ["1", "4"]]
    assert main(["query", run, sql, "--format", "csv"]) == 0
    assert capsys.readouterr().out == '"rank","n"\n0,4\n1,4\n'
    assert main(["query", run, sql, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"rank": 0, "n": 4}, {"rank": 1, "n": 4}]
    target = tmp_path / "rows.parquet"
    assert (
        main(["query", run, "SELECT * FROM ops WHERE name = 'aten::mm'", "--format", "parquet", "-o", str(target)]) == 0
    )
    assert pq.read_table(target)["name"].to_pylist() == ["aten::mm"] * 2
    assert f"to {target}" in capsys.readouterr().err
    assert main(["query", run, sql, "-o", str(tmp_path / "rows.csv"), "-q"]) == 0
    assert (tmp_path / "rows.csv").read_text() == '"rank","n"\n0,4\n1,4\n'
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sql", ["SHOW TABLES", "SELECT table_name AS name FROM information_schema.tables"])
def test_tables_lists_all_tables(run: str, sql: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", run, sql, "-q", "--format", "json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert names == {schema.name for schema in catalog.SCHEMAS}


def test_listed_tables_can_be_queried(run: str) -> None:
    opened = open_run(run)
    assert len(opened.query("SHOW TABLES").fetchall()) == len(catalog.SCHEMAS)
    assert opened.query("SELECT count(*) FROM steps").fetchall() == [(4,)]


def test_query_states_when_rows_are_left_out(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", run, "SELECT * FROM range(500) t(x)"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 201
    assert "first 200 of 500 rows" in captured.err


def test_query_states_when_a_cell_is_cut(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", run, "SELECT repeat('x', 100_000_000) AS x"]) == 0  # wrapping all of it took over a minute
    captured = capsys.readouterr()
    assert (captured.out.count("x"), captured.out.count("…")) == (1 + 10_000, 1)
    assert "cut after 10,000 characters" in captured.err


@pytest.mark.parametrize(
    "words",
    [
        ["query", "RUN", "SELECT * FROM nothing"], ["query", "RUN", "SELECT 1", "--format", "parquet"],
        ["query", "RUN", "SELECT 1", "-o", "/nonexistent/rows.csv"], ["info", "/nonexistent"],
        ["info", "RUN", "--ranks", "5-3"], ["info", "RUN", "--ranks", "9"], ["info", "RUN", "--run", "other"],
        ["tables", "kernel"], ["export", "RUN", "-o", "/nonexistent/out.json"],
        ["export", "RUN", "-o", "x.json", "--range", "5"], ["export", "RUN", "-o", "x.json", "--range", "5ms-1ms"],
        ["export", "RUN", "-o", "x.json", "--steps", "99:"], ["export", "RUN", "-o", "x.json", "--steps", "-1"],
    ],
)  # fmt: skip
def test_usage_and_input_errors_exit_with_2_and_a_hint(
    run: str, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([run if word == "RUN" else word for word in words]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "\nhint: " in message


def test_tables_document_every_column(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["tables"]) == 0
    out = capsys.readouterr().out
    for schema in catalog.SCHEMAS:
        assert schema.doc in out
        assert all(column.doc in out for column in schema.columns)
    assert main(["tables", "--names"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(catalog.SCHEMAS)


def test_the_cache_is_measured_and_cleared(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", run, "-v"]) == 0
    assert "rank1.json.gz" in capsys.readouterr().err
    assert main(["cache", "info"]) == 0
    assert "ranks    2" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed 2 ranks" in capsys.readouterr().out
    assert main(["cache", "info"]) == 0
    assert "ranks    0" in capsys.readouterr().out


class TestExport:
    """One file that Perfetto reads."""

    def load(self, path: Path) -> dict[str, Any]:
        data = path.read_bytes()
        unpack = {".gz": gzip.decompress, ".zst": zstandard.ZstdDecompressor().decompress}.get(path.suffix)
        if path.suffix == ".zst":
            return dict(json.loads(zstandard.ZstdDecompressor().decompressobj().decompress(data)))
        return dict(json.loads(unpack(data) if unpack else data))

    @pytest.mark.parametrize("name", ["m.json", "m.json.gz", "m.json.zst"])
    def test_every_event_of_every_rank_is_there_once(self, run: str, tmp_path: Path, name: str) -> None:
        target = tmp_path / name
        assert main(["export", run, "-o", str(target), "-q"]) == 0
        events = self.load(target)["traceEvents"]
        spans = collections.Counter(event["name"] for event in events if event["ph"] == "X")
        assert spans["gemm"] == spans["late"] == spans["ProfilerStep#3"] == 2
        assert not list(tmp_path.glob(".*part"))

    def test_ranks_are_named_sorted_processes(self, run: str, tmp_path: Path) -> None:
        main(["export", run, "-o", str(tmp_path / "m.json"), "-q"])
        events = self.load(tmp_path / "m.json")["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
        ranks = [names[pid].split()[1] for pid in sorted(order, key=lambda pid: order[pid])]
        assert ranks == sorted(ranks)
        assert set(ranks) == {"0", "1"}
        assert {e["pid"] for e in events} == set(names)

    def test_ranges_of_one_lane_nest_and_overlaps_have_lanes_of_their_own(self, run: str, tmp_path: Path) -> None:
        main(["export", run, "-o", str(tmp_path / "m.json"), "-q"])
        ranges = [e for e in self.load(tmp_path / "m.json")["traceEvents"] if e["ph"] == "X"]
        lanes = {e["name"]: (e["pid"], e["tid"]) for e in ranges}
        assert lanes["gemm"] != lanes["overlapping"]
        tracks = collections.defaultdict(list)
        for e in ranges:
            tracks[e["pid"], e["tid"]].append((round(e["ts"] * 1000), -round(e["dur"] * 1000)))
        for spans in tracks.values():
            open_ends: list[int] = []
            for start, length in sorted(spans):
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or start - length <= open_ends[-1]
                open_ends.append(start - length)

    def test_arrows_lead_from_launch_to_kernel(self, run: str, tmp_path: Path) -> None:
        main(["export", run, "-o", str(tmp_path / "m.json"), "-q"])
        events = self.load(tmp_path / "m.json")["traceEvents"]
        begins = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        assert len(begins) == 8
        assert begins.keys() == ends.keys()
        assert all(begins[key]["ts"] <= ends[key]["ts"] for key in begins)

    def test_steps_ranks_and_time_choose(self, run: str, tmp_path: Path) -> None:
        main(["export", run, "-o", str(tmp_path / "s.json"), "--steps", "4", "--ranks", "1", "-q"])
        names = {e["name"] for e in self.load(tmp_path / "s.json")["traceEvents"] if e["ph"] == "X"}
        assert "late" in names
        assert "gemm" not in names
        main(["export", run, "-o", str(tmp_path / "t.json"), "--range", "0us-1us", "-q"])
        names = {e["name"] for e in self.load(tmp_path / "t.json")["traceEvents"] if e["ph"] == "X"}
        assert "aten::mm" in names
        assert "late" not in names

    def test_a_trace_of_the_run_is_not_overwritten(self, run: str, capsys: pytest.CaptureFixture[str]) -> None:
        trace = next(path for path in sorted(Path(run).iterdir()) if path.name.startswith("rank0"))
        before = trace.read_bytes()
        assert main(["export", run, "-o", str(trace), "-q"]) == 2
        assert "is a trace of this run" in capsys.readouterr().err
        assert trace.read_bytes() == before

    def test_the_export_can_be_read_again(self, run: str, tmp_path: Path) -> None:
        target = tmp_path / "again" / "rank0.json.gz"
        target.parent.mkdir()
        assert main(["export", run, "-o", str(target), "--ranks", "0"]) == 0
        assert main(["query", str(target), "SELECT count(*) FROM kernels", "--format", "csv"]) == 0


@pytest.mark.parametrize(("text", "numbers"), [("3", (3,)), ("0-2,7", (0, 1, 2, 7)), ("5,5, 1", (1, 5))])
def test_number_lists_are_parsed(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_rank_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "0-99999999"])
def test_an_invalid_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rank_numbers(text)


class TestQuerySafely:
    """Errors of a query are usage errors, and only SELECT statements are run."""

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT 'a'::INT",
            "SELECT 1 +",
            "SELECT * FROM nothing",
            "SELECT error('own')",
            "SELECT 1; SELECT 2",
            "",
            "DROP VIEW events",
            "CREATE TABLE t AS SELECT 1",
            "EXPLAIN ANALYZE DROP VIEW events",
            "EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1",
            "explain (format json) drop view events",
            "/* x */ EXPLAIN ANALYZE DROP VIEW events",
            "EXPLAIN EXPLAIN ANALYZE DROP VIEW events",
            "EXPLAIN ANALYZE SELECT 1; DROP VIEW events",
            "COPY steps TO 'x.csv'",
            "ATTACH 'x.db'",
            "SET memory_limit = '1GB'",
            "SELECT '\udcff'",
        ],
    )
    def test_an_invalid_query_is_refused_in_one_line(
        self, run: str, sql: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["query", run, sql, "-q"]) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("error: ")
        assert "internal error" not in shown.err
        assert shown.out == ""

    @pytest.mark.parametrize(
        "sql", ["EXPLAIN SELECT 1", "explain analyze SELECT count(*) FROM steps", "FROM steps LIMIT 1"]
    )
    def test_selects_and_their_explanations_are_answered(self, run: str, sql: str) -> None:
        assert main(["query", run, sql, "-q"]) == 0

    def test_types_without_a_parquet_form_are_refused_with_an_alternative(
        self, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = tmp_path / "rows.parquet"
        words = ["query", run, "SELECT [INTERVAL 1 DAY]", "--format", "parquet", "-q", "-o", str(target)]
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("error: the answer cannot be written as parquet")
        assert "VARCHAR" in shown.err
        assert not target.exists()

    def test_a_sum_is_a_number_in_json(self, run: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["query", run, "SELECT sum(1) AS n, 1.50 AS half FROM range(3)", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"n": 3, "half": 1.5}]

    def test_columns_of_one_name_are_all_there(
        self, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sql = "SELECT 1 AS a, 2 AS a_1, 3 AS a, 4 AS A"
        assert main(["query", run, sql, "--format", "json", "-q"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_1": 2, "a_2": 3, "A": 4}]
        target = tmp_path / "rows.parquet"
        assert main(["query", run, sql, "--format", "parquet", "-q", "-o", str(target)]) == 0
        assert pq.read_table(target).to_pylist() == [{"a": 1, "a_1": 2, "a_2": 3, "A": 4}]

    def test_lists_structs_and_formulas_go_into_csv(self, run: str, capsys: pytest.CaptureFixture[str]) -> None:
        sql = "SELECT [1, 2] AS l, {'a': 'x'} AS s, '=1+1' AS f, '-x' AS m, 'plain' AS p, -1 AS n, NULL::VARCHAR AS u"
        assert main(["query", run, sql, "--format", "csv", "-q"]) == 0
        head, row = list(csv.reader(capsys.readouterr().out.splitlines()))
        assert dict(zip(head, row, strict=True)) == {
            "l": "[1,2]",
            "s": '{"a":"x"}',
            "f": "'=1+1",
            "m": "'-x",
            "p": "plain",
            "n": "-1",
            "u": "",
        }
