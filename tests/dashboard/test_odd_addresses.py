"""Odd addresses: each page with garbage in every parameter that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drawn import naming, tried
from tiers import thinned

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[2] / "traces"
READ = {
    "ranks": ("wall",),
    "overview": ("order",),
    "timeline": ("find", "show", "range", "pins", "folds", "picked", "notes"),
    "communication": (),
    "pipeline": ("schedule", "m", "v"),
    "suggestions": ("ticked",),
    "whatif": ("edits",),
    "plan": ("devices", "batch", "device", "dtype", "efficiency", "plan", "trainer", "model", "sequence", "view", "tp"),
    "compare": ("before", "after", "step", "all"),
    "sweep": ("down", "across", "figure", "devices"),
    "query": ("sql", "chart"),
}
"""Parameters that each page reads from the address, in addition to the run, the ranks and the steps."""
GARBAGE = (
    "<script>alert(1)</script>",
    "-1",
    "0",
    "99999999999999999999",
    "1e309",
    "\u00b2",
    "\u202e\u05e9\u05dc\u05d5\u05dd\u0000",
    "x" * 10_000,
    "../../etc/passwd,2-3=4",
)
EDITS = (
    "dp=99999999999",
    "dp=0",
    "tp=-1",
    "micro_batches=\u00b2",
    "comm_faster=nan",
    "comm_faster=0",
    "compute_faster=inf,axis=",
    "comm_faster=1e308,axis=pp",
    "schedule=<b>",
    "zero=9",
    "recompute=",
    "rank_as_peers=99999999999999999999",
    "bandwidth=0,axis=pp",
    "schedule=gpipe,m=-4,v=1e9",
    "no_pauses no_pauses no_pauses",
    "=,=,=",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def runs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with naming([TRACES / "recorded-1f1b", TRACES / "recorded-interleaved"], cache, monkeypatch):
        yield


@pytest.mark.parametrize("page", READ)
def test_invalid_values_in_an_address_are_refused_or_ignored(page: str) -> None:
    turn = list(READ).index(page) % 3  # each page begins with another word, so that the default suite has all
    for word in thinned(GARBAGE[turn:] + GARBAGE[:turn], 3):
        for words in (READ[page], ("run",)):
            app = tried(page, **dict.fromkeys(words, word))
            assert not app.exception, (word, app.exception[0].value)


@pytest.mark.parametrize("page", ["overview", "timeline", "communication", "kernels", "ranks", "suggestions"])
def test_an_empty_selection_is_drawn_without_an_error(page: str) -> None:
    for ranks, steps in (("77", "99999"), ("-1", "5-1"), ("0", "999999999"), ("\u00b2", "--")):
        app = tried(page, ranks=ranks, steps=steps)
        assert not app.exception, (ranks, steps, app.exception[0].value)


def test_odd_changes_are_refused() -> None:
    for edits in EDITS:
        app = tried("whatif", edits=edits)
        assert not app.exception, (edits, app.exception[0].value)


ODD_QUESTIONS = (
    "SELECT now() AS at, INTERVAL 1 MONTH AS long, MAP {'a': 1} AS m, {'b': [1, 2]} AS s, uuid() AS u, 'x'::BLOB AS b",
    "SELECT 1 AS a, 2 AS a, 3 AS A",
    "SELECT * FROM kernels, steps LIMIT 3",
    "SELECT * FROM events WHERE false",
    "SELECT 170141183460469231731687303715884105727::HUGEINT AS n, 'infinity'::DOUBLE AS i, 'nan'::DOUBLE AS d, NULL",
    "SELECT '<script>alert(1)</script>' AS \"<img src=x onerror=alert(1)>\", '\u202e' AS \"\"",
    "EXPLAIN SELECT 1",
    "DESCRIBE kernels",
    "SELECT repeat('x', 100000000) AS long",
    "SELECT" + " 1 +" * 4_000 + " 1",
    "SELECT * FROM read_csv('/etc/passwd')",
    "PRAGMA database_list",
    "\u0000",
)


@pytest.mark.parametrize("sql", ODD_QUESTIONS, ids=range(len(ODD_QUESTIONS)))
def test_an_odd_question_is_answered_or_refused(sql: str) -> None:
    for chart in ("none", "bars"):
        app = tried("query", sql=sql, chart=chart)
        assert not app.exception, app.exception[0].value


def test_sums_are_numbers_and_headings_differ() -> None:
    sql = "SELECT sum(dur_ns) AS n, 2 AS n, sum(0.5::DECIMAL(9, 2)) AS half FROM events"
    shown = tried("query", sql=sql).dataframe[0].value
    assert len(set(shown)) == 3
    assert [str(kind) for kind in shown.dtypes] == ["int64", "int32", "float64"]
