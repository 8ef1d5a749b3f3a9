"""HolisticTraceAnalysis itself on our trainer's recordings: it opens them and finds the same figures.

Runs in the environment that `scripts/test --all` creates for HTA (it needs `pandas<3`, we do not); skipped elsewhere.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from usp_prof import open_run

RECORDED = Path(__file__).parents[2] / "traces" / "recorded-1f1b"
pytestmark = [
    pytest.mark.skipif(find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed"),
    pytest.mark.filterwarnings("default"),
]


def test_hta_finds_the_same_ops_and_steps_in_our_recording(tmp_path: Path) -> None:
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 - it is not installed in the usual environment

    files = {rank: str(RECORDED / f"rank{rank}.json.gz") for rank in (0, 3)}
    theirs = TraceAnalysis(trace_files=files, trace_dir="")
    run = open_run(RECORDED, cache_dir=tmp_path)
    ours = run.to_hta(ranks=list(files))
    for rank in files:
        names = Counter(theirs.t.symbol_table.get_sym_table()[code] for code in theirs.t.get_trace(rank)["name"])
        table = run.query(f"SELECT name, count(*) FROM ops WHERE rank = {rank} GROUP BY name").fetchall()  # noqa: S608
        assert len(table) > 100
        assert {name: names[name] for name, _ in table} == dict(table)
        assert len(ours.t.get_trace(rank)) >= sum(count for _, count in table)
    assert list(ours.get_profiler_steps()) == list(theirs.get_profiler_steps()) == [3]
