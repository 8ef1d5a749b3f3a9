"""Text of each DuckDB type in an answer: terminal, CSV, JSON, Parquet, agents and pages.

The text is DuckDB's own, `CAST(... AS VARCHAR)`.
"""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest
from tiny import Trace, write

from dashboard.pages import query as page
from usp_prof.cli.app import main
from usp_prof.extras.agent.answers import Answers
from usp_prof.extras.agent.folders import Folders
from usp_prof.run import open_run
from usp_prof.tables.sql_cells import Cells

if TYPE_CHECKING:
    from pathlib import Path

RARE = {
    "time": "TIME '10:00:01.5'",
    "the end of the day": "TIME '24:00:00'",
    "timetz": "TIMETZ '10:00:00+02'",
    "date": "DATE '2020-01-01'",
    "a date before Christ": "DATE '0044-03-15 (BC)'",
    "a late date": "DATE '5877000-01-01'",
    "infinite date": "DATE 'infinity'",
    "timestamp": "TIMESTAMP '2020-01-01 10:00:00'",
    "infinite timestamp": "TIMESTAMP '-infinity'",
    "timestamptz": "TIMESTAMPTZ '2020-01-01 00:00:00+02'",
    "timestamp_s": "TIMESTAMP_S '2020-01-01 00:00:00'",
    "timestamp_ms": "TIMESTAMP_MS '2020-01-01 00:00:00.123'",
    "timestamp_ns": "TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
    "interval": "INTERVAL 3 MONTH + INTERVAL 2 DAY",
    "negative interval": "-(INTERVAL 3 MONTH + INTERVAL 2 HOUR)",
    "bit": "'0101'::BIT",
    "blob": r"'\xAAab'::BLOB",
    "uuid": "UUID '12345678-1234-1234-1234-123456789012'",
    "uhugeint": "340282366920938463463374607431768211455::UHUGEINT",
    "union": "union_value(k := 3)",
    "map": "MAP {'a': 1, 'b': NULL}",
    "row": "row(1, 2)",
    "list of maps": "MAP {'a': [TIME '10:00:00']}",
}
"""Values that JSON and CSV hold as texts."""
TEXTS = {"enum": "'b'::ENUM ('a', 'b')", "varchar": "'plain'", "json": "'[1]'::JSON", "bignum": "'{0}'::BIGNUM"}
TEXTS["bignum"] = TEXTS["bignum"].format("-" + "1234567890" * 5)
NOT_FINITE = {"infinity": "'inf'::DOUBLE", "negative": "'-inf'::FLOAT", "no number": "'nan'::DOUBLE"}
NUMBERS = {
    "hugeint": "170141183460469231731687303715884105727::HUGEINT",
    "ubigint": "18446744073709551615::UBIGINT",
    "decimal": "1.500::DECIMAL(10, 3)",
    "small decimal": "0.0000000001::DECIMAL(38, 12)",
    "double": "1e300",
    "float": "0.1::FLOAT",
    "boolean": "true",
}
NESTED = {
    "list": ("[TIMETZ '10:00:00+02', NULL]", ["10:00:00+02", None]),
    "array": ("[DATE 'infinity']::DATE[1]", ["infinity"]),
    "struct": ("{'a b': INTERVAL 1 DAY, 'n': [1.5], 'u': {'x': '1'::BIT}}",
               {"a b": "1 day", "n": [1.5], "u": {"x": "1"}}),
    "infinity in a list": ("['inf'::DOUBLE, 1.0]", [None, 1.0]),  # types that JSON lacks, including lists in CSV
}  # fmt: skip
AS_TEXT = {**RARE, **TEXTS, **NOT_FINITE}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cells") / "run"
    return str(write({0: Trace(0, 1).step(1, 0, 9000).kernel("gemm", 2000, 600, launch_at=300)}, folder))


def text_of(expression: str) -> str:
    """Return the text that DuckDB writes."""
    [[text]] = duckdb.sql(f"SELECT CAST({expression} AS VARCHAR)").fetchall()
    return str(text)


def select(*expressions: str) -> str:
    return "SELECT " + ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(expressions))


def query(capsys: pytest.CaptureFixture[str], run: str, sql: str, *options: str) -> str:
    assert main(["query", run, sql, "-q", *options]) == 0
    return capsys.readouterr().out


def test_a_terminal_shows_the_texts_that_duckdb_writes(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    expressions = [*AS_TEXT.values(), *NUMBERS.values(), *(sql for sql, _ in NESTED.values())]
    _, row = query(capsys, run, select(*expressions)).splitlines()
    assert re.split(r"\s{2,}", row.strip()) == [text_of(expression) for expression in expressions]


def test_csv_holds_the_texts_that_duckdb_writes(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, row = csv.reader(query(capsys, run, select(*AS_TEXT.values()), "--format", "csv").splitlines())
    assert dict(zip(AS_TEXT, row, strict=True)) == {name: text_of(expression) for name, expression in AS_TEXT.items()}


def test_json_holds_the_texts_that_duckdb_writes(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {name: text_of(sql) for name, sql in AS_TEXT.items()} | dict.fromkeys(NOT_FINITE)
    [row] = json.loads(query(capsys, run, select(*AS_TEXT.values()), "--format", "json"))
    assert dict(zip(AS_TEXT, row.values(), strict=True)) == expected


def test_json_and_csv_keep_lists_and_structs_with_texts_inside(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql, expected = select(*(sql for sql, _ in NESTED.values())), [value for _, value in NESTED.values()]
    [row] = json.loads(query(capsys, run, sql, "--format", "json"))
    assert list(row.values()) == expected
    _, cells = csv.reader(query(capsys, run, sql, "--format", "csv").splitlines())
    assert [json.loads(cell) for cell in cells] == expected


@pytest.mark.parametrize("form", ["json", "csv"])
def test_numbers_stay_numbers(run: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = query(capsys, run, select(*NUMBERS.values()), "--format", form)
    row = (
        list(json.loads(out)[0].values())
        if form == "json"
        else [json.loads(cell) for cell in out.split()[1].split(",")]
    )
    expected = [json.loads(text_of(expression)) for expression in NUMBERS.values()]
    assert [type(value) for value in row if not isinstance(value, float)] == [int, int, bool]
    assert row == pytest.approx(expected)


def test_an_agent_reads_the_texts_that_duckdb_writes(run: str) -> None:
    reply = Answers(Folders([run])).sql(".", select(*AS_TEXT.values())).plain()
    assert reply["tables"][0]["rows"] == [[text_of(expression) for expression in AS_TEXT.values()]]


def test_the_query_page_shows_the_texts_that_duckdb_writes(run: str) -> None:
    expressions = [*RARE.values(), *TEXTS.values()]
    frame = page.as_frame(open_run(run).answer(select(*expressions), cells=Cells.PLAIN))
    assert frame.iloc[0].to_list() == [text_of(expression) for expression in expressions]


@pytest.mark.parametrize("name", ["timetz", "bit", "uhugeint", "union"])
def test_types_without_a_parquet_form_become_text(run: str, tmp_path: Path, name: str) -> None:
    """A UHUGEINT used to be printed as -1, and a TIMETZ without its zone."""
    target = tmp_path / "rows.parquet"
    assert main(["query", run, f"SELECT {RARE[name]} AS x", "-q", "--format", "parquet", "-o", str(target)]) == 0
    assert pq.read_table(target)["x"].to_pylist() == [text_of(RARE[name])]


def test_columns_keep_names_and_rows_keep_order(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = 'SELECT TIME \'10:00:00\' AS a, x AS a, 3 AS "q""q" FROM range(200_000) t(x) ORDER BY x DESC'
    assert main(["query", run, sql, "-q", "--format", "csv"]) == 0
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert head == ["a", "a", 'q"q']
    assert [int(row[1]) for row in rows] == list(range(199_999, -1, -1))


def test_no_type_is_written_as_a_formula_in_csv(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = select("'=1+1'::ENUM ('=1+1')", "'@x'::BLOB", "union_value(k := '+1+1')", "'-1+cmd|x'")
    _, row = csv.reader(query(capsys, run, sql, "--format", "csv").splitlines())
    assert row == ["'=1+1", "'@x", "'+1+1", "'-1+cmd|x"]
