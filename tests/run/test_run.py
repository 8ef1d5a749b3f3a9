"""Opening a path: tables, bounded SQL, the right run, and all errors."""

from __future__ import annotations

import json
import math
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny

from usp_prof import Run, check, compare, open_run, plan
from usp_prof.contract import Manifest
from usp_prof.model.errors import InputError, UsageError
from usp_prof.tables import catalog

if TYPE_CHECKING:
    from collections.abc import Callable


def trace(rank: int, world: int = 2, **options: Any) -> tiny.Trace:
    made = tiny.Trace(rank, world, **options).group("1", [0, 1], "mesh_tp").step(3, at=0, dur=10_000)
    made.op("aten::mm", at=100, dur=500).kernel("gemm", at=1_000, dur=2_000, launch_at=200)
    return made.collective("all_reduce", at=3_000, dur=1_000, launch_at=700, group="1", nelems=64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    return tiny.write({0: trace(0), 1: trace(1)}, tmp_path / "run", Manifest(name="told", mesh={"tp": 2}))


def codes(run: Any) -> list[str]:
    return [row.code for row in run.health]


def test_a_run_has_ranks_tables_and_a_manifest(folder: Path) -> None:
    run = open_run(folder)
    assert run.ranks == (0, 1)
    assert run.name == "run"
    assert run.manifest is not None
    assert run.manifest.name == "told"
    assert [file.path.name for file in run.files] == ["rank0.json.gz", "rank1.json.gz"]
    assert run.others == ()
    assert repr(run).startswith("Run('run', ranks=2")


def test_one_of_several_runs_is_named_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.write({0: trace(0, 1)}, folder.parent / "other")
    run = open_run(folder.parent)
    assert f"holds 2 runs: reading the newest, {run.name}" in caplog.text
    caplog.clear()
    open_run(folder.parent, run="other")
    assert not caplog.text


def test_several_paths_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="takes one path") as refused:
        open_run([folder, folder])  # type: ignore[arg-type]
    assert refused.value.hint


def test_tables_are_returned_as_relations(folder: Path) -> None:
    run = open_run(folder)
    kernels = run.table("kernels").df()
    assert kernels["rank"].tolist() == [0, 0, 1, 1]
    assert run.query("SELECT count(*) FROM KERNELS k JOIN steps s USING (rank, step)").fetchall() == [(4,)]
    assert run.query('WITH q AS (SELECT * FROM "events") SELECT max(rank) FROM q').fetchall() == [(1,)]
    assert run.table("calls").fetchall()


def test_derived_files_are_in_the_runs_cache(folder: Path, tmp_path: Path) -> None:
    made: list[Path] = []

    def write(place: Path) -> None:
        made.append(place)
        (place / "file").write_bytes(b"x")

    first = open_run(folder).derived("picture-1", write)
    assert first.parent == tmp_path / "cache"
    assert open_run(folder).derived("picture-1", write) == first
    assert len(made) == 1
    assert open_run(folder, ranks=[1]).derived("picture-1", write) != first
    assert len(made) == 2


def test_a_run_larger_than_the_cache_limit_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE_SIZE", "1")
    run = open_run(folder)
    assert run.query("SELECT count(*) FROM kernels").fetchall() == [(4,)]
    assert run.table("calls").fetchall()


def test_without_a_cache_derived_files_are_temporary(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = open_run(folder, cache_dir=tmp_path / "file" / "below")

    def write(at: Path) -> None:
        (at / "file").write_bytes(b"x")

    place = run.derived("picture-1", write)
    assert (place / "file").read_bytes() == b"x"
    del run
    assert not place.exists()


def test_every_table_has_its_schema(folder: Path) -> None:
    run = open_run(folder)
    for schema in catalog.SCHEMAS:
        assert tuple(run.table(schema.name).columns) == schema.names, schema.name


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/hostname')", "SELECT * FROM '/etc/hostname'", "COPY kernels TO '/tmp/x.csv'",
        "ATTACH '/tmp/x.db'", "SET threads = 1", "CREATE TABLE z AS SELECT 1", "SELECT 1; SELECT 2",
        "DROP VIEW kernels", "SELECT", "not sql", "SELECT * FROM kernelz", "SELECT * FROM glob('/*')", "",
        "INSTALL httpfs", "PRAGMA enable_profiling", "CALL enable_logging()",
        "EXPLAIN ANALYZE COPY kernels TO '/tmp/x.csv'", "EXPLAIN /**/ ANALYZE DROP VIEW kernels",
        "WITH d AS (DELETE FROM kernels RETURNING *) SELECT * FROM d", "SELECT * FROM query('DROP VIEW kernels')",
    ],
)  # fmt: skip
def test_sql_reads_only_the_tables(folder: Path, sql: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_run(folder).query(sql).fetchall()
    assert "usp-prof tables" in caught.value.hint


def test_spill_files_are_in_the_temporary_folder(folder: Path) -> None:
    """DuckDB's own choice is `.tmp` in the current folder, which may be the user's repository."""
    relation = open_run(folder).query("SELECT 1")
    (place,) = relation.query("one", "SELECT current_setting('temp_directory')").fetchall()
    assert Path(place[0]).parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM read_text('/etc/hostname')", "SELECT 1; SELECT 2", "LOAD json", "SELECT 1 FROM nothing", ""]
)
def test_bounded_sql_is_refused_like_other_sql(folder: Path, sql: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_run(folder).answer(sql, rows=5, seconds=60)
    assert "usp-prof tables" in caught.value.hint


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM duckdb_settings()",
        "SELECT current_setting('temp_directory')",
        "SELECT * FROM query('SELECT * FROM duckdb_' || 'settings()')",
    ],
)
@pytest.mark.parametrize("seconds", [math.inf, 60])
def test_sql_reads_no_settings(folder: Path, sql: str, seconds: float) -> None:
    with pytest.raises(UsageError, match="SQL can read the tables only"):
        open_run(folder).answer(sql, rows=5, seconds=seconds)


def test_a_single_slow_sql_function_is_stopped(folder: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(UsageError, match=r"took longer than 2 s|GiB of memory"):
        open_run(folder).answer("SELECT length(lpad('x', 2000000000, 'y'))", rows=5, seconds=2)
    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3 << 20  # KiB


@pytest.mark.parametrize(
    "ask",
    [
        lambda _, __: open_run(None),
        lambda _, other: open_run(other),
        lambda run, other: compare(other, run),
        lambda run, other: run.sql(other),
        lambda run, other: run.table(other),
        lambda run, other: run.mfu(convention=other),
        lambda run, _: check(run, minimum={"mfu": "x"}),
        lambda run, other: check(run, minimum=other),
        lambda run, _: check(run, max_regression="step_time=3%"),
        lambda _, __: plan(model="Llama-3-8B", sequence=8192, device="H100", devices="8", batch=64),
    ],
)
def test_a_value_of_another_type_is_unusable_input(folder: Path, ask: Callable[[Run, Any], object]) -> None:
    with pytest.raises(UsageError) as refused:
        ask(open_run(folder), 5)
    assert refused.value.hint


@pytest.mark.parametrize(
    "sql", ["SELECT repeat('ab', 2000000000)", "SELECT string_agg(repeat('x', 1000), ',') FROM range(100000000)"]
)
def test_a_query_without_enough_memory_gets_no_advice_on_settings(folder: Path, sql: str) -> None:
    """DuckDB's own text advises `SET threads`, which no query may use."""
    with pytest.raises(UsageError, match=r"needs more than 2 GiB of memory") as caught:
        open_run(folder).answer(sql, rows=5, seconds=60)
    assert "fewer ranks" in caught.value.hint


def test_an_answer_stops_at_its_row_limit(folder: Path) -> None:
    run = open_run(folder)
    assert run.answer("SELECT * FROM range(1000000000000)", rows=5, seconds=60).num_rows == 5
    assert run.answer("SELECT rank FROM kernels ORDER BY rank", rows=3, seconds=60)["rank"].to_pylist() == [0, 0, 1]
    assert run.answer("EXPLAIN SELECT * FROM kernels", rows=1, seconds=60).num_rows
    assert run.answer("SELECT now() AS at, INTERVAL 1 DAY AS long, [1, 2] AS many", rows=1, seconds=60).num_rows == 1


def test_an_endless_query_is_stopped(folder: Path) -> None:
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range * b.range) % 7 = 3"
    with pytest.raises(UsageError, match=r"took longer than 0\.2 s"):
        open_run(folder).answer(endless, rows=5, seconds=0.2)


@pytest.mark.slow
def test_several_threads_can_query(folder: Path) -> None:
    run = open_run(folder)
    sql = "SELECT sum(k.rank + r.range) AS n FROM kernels k, range(2000) r"
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: run.answer(sql, rows=1, seconds=60)["n"].to_pylist(), range(12)))
    assert counts == [counts[0]] * 12


def test_an_unknown_table_suggests_the_nearest(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_run(folder).table("kernel")
    assert "kernels" in caught.value.hint


def test_a_subset_of_ranks_can_be_opened(folder: Path) -> None:
    run = open_run(folder, ranks=[1])
    assert run.ranks == (1,)
    assert run.query("SELECT DISTINCT rank FROM events").fetchall() == [(1,)]
    with pytest.raises(UsageError, match="no rank 2-3"):
        open_run(folder, ranks=[1, 2, 3])
    with pytest.raises(UsageError):
        open_run(folder, ranks=[])
    assert open_run(folder, ranks=1).ranks == (1,)


def test_missing_ranks_are_reported(folder: Path) -> None:
    (folder / "rank0.json.gz").unlink()
    run = open_run(folder)
    assert [row.detail for row in run.health if row.code == "missing_ranks"] == [
        "no trace of rank 0 (1 of 2 ranks), so that work is unknown"
    ]


def test_a_damaged_rank_is_reported_and_others_are_read(folder: Path) -> None:
    (folder / "rank0.json.gz").write_bytes((folder / "rank0.json.gz").read_bytes()[:40])
    run = open_run(folder)
    assert run.ranks == (1,)
    assert {"rank_unreadable", "missing_ranks"} & set(codes(run))


def test_one_of_several_runs_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    tiny.write({0: trace(0, 1, base=10**18)}, tmp_path / "runs" / "older")
    tiny.write({0: trace(0, 1, base=2 * 10**18)}, tmp_path / "runs" / "newer")
    run = open_run(tmp_path / "runs")
    assert (run.name, run.others) == ("newer", ("older",))
    assert "other_runs" in codes(run)
    assert open_run(tmp_path / "runs", run="older").name == "older"
    with pytest.raises(UsageError) as caught:
        open_run(tmp_path / "runs", run="oldest")
    assert "older" in caught.value.hint


def test_the_embedded_manifest_is_used_if_run_json_is_missing(folder: Path) -> None:
    (folder / "run.json").unlink()
    for rank in range(2):
        trace(rank).meta(usp_prof=Manifest(name="inside").to_dict()).write(folder / f"rank{rank}.json.gz")
    run = open_run(folder)
    assert run.manifest is not None
    assert run.manifest.name == "inside"


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "\xff"])
def test_a_broken_manifest_is_reported(folder: Path, text: str) -> None:
    (folder / "run.json").write_bytes(text.encode("latin-1"))
    run = open_run(folder)
    assert run.manifest is None
    assert "broken_manifest" in codes(run)


@pytest.mark.parametrize("text", ['{"mesh": 3}', '{"groups": [{"name": "x"}]}', '{"groups": 3}'])
def test_an_invalid_field_of_the_manifest_drops_only_that_field(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text[:-1] + ', "name": "kept"}')
    run = open_run(folder)
    assert run.manifest is not None
    assert (run.manifest.name, run.manifest.mesh, run.manifest.groups) == ("kept", {}, [])
    assert "odd_values" in codes(run)


def test_equal_rows_of_several_ranks_become_one(folder: Path) -> None:
    for rank in range(2):
        data = json.loads(trace(rank).to_json())
        data.pop("baseTimeNanoseconds")
        (folder / f"rank{rank}.json.gz").write_text(json.dumps(data))
    rows = [row for row in open_run(folder).health if row.code == "no_base_time"]
    assert [(row.rank, row.count) for row in rows] == [(-1, 2)]
    assert rows[0].detail.startswith("ranks 0-1: ")


def test_paths_without_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_run(tmp_path)


def test_misused_arguments_are_refused_with_a_hint(folder: Path) -> None:
    run = open_run(folder)
    with pytest.raises(UsageError, match="an edit is a string, not list"):
        run.whatif(["no_pauses"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the limit of step_time is a text with its unit"):
        check(run, max_regression={"step_time": 0.03})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="minimum names metrics, not 1"):
        check(run, minimum={1: 2})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="no run is named"):
        open_run(folder, run=["run"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no table is named"):
        run.table(["kernels"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="across=5 is not a list"):
        compare(run, run, across=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the model is a name or a file"):
        run.assume(model=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [3.5, "4096", math.nan, -1, 10**30, None])
@pytest.mark.parametrize("name", ["sequence", "tokens_per_step"])
def test_assumed_counts_are_whole_numbers(folder: Path, name: str, value: Any) -> None:
    """Python's own errors came up for texts, and fractions were accepted."""
    with pytest.raises(UsageError, match=f"{name}=.* is not a whole number above 0"):
        open_run(folder).assume(**{name: value})


def test_one_kind_of_difference_needs_no_list(folder: Path) -> None:
    run = open_run(folder)
    assert repr(compare(run, run, across="hardware")) == repr(compare(run, run, across=["hardware"]))


def test_a_run_shows_its_summary_in_a_notebook(folder: Path) -> None:
    run = open_run(folder)
    assert run._repr_html_() == run.summary._repr_html_()
