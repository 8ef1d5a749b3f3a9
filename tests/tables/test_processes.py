"""Do copies of our own process and processes begun anew read the same, and do all of them end?"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import tiny

from usp_prof.readers.cache import Cache

if TYPE_CHECKING:
    from pathlib import Path

LINES = """
import os, sys
from pathlib import Path
from usp_prof.readers.own_process import make_ours
if sys.argv[1] == "copied":
    make_ours()
from usp_prof.readers.cache import Cache
from usp_prof.tables import _processes
process = _processes.begin(Cache(Path(sys.argv[2]), 1000000))
print(type(process.wait).__name__)
for line in sys.argv[3:]:
    process.told.write(line.encode() + b"\\n")
process.told.flush()
for line in sys.argv[4:]:
    print(process.says.readline().decode().strip())
process.told.close()
print(process.says.read(), process.wait())
"""
MANY = """
import signal, sys
from pathlib import Path
from usp_prof.readers.own_process import make_ours
if sys.argv[1] != "anew":
    make_ours()
if sys.argv[1] == "not awaited":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from usp_prof import open_run
from usp_prof.tables import _side_by_side, load
load._LITTLE = 0
_side_by_side._processors = lambda: 4
run = open_run(sys.argv[2], cache_dir=sys.argv[3])
print([run.tables.columns("ops", rank)["dur_ns"].tolist() for rank in run.tables.ranks])
"""


def said_by(code: str, *words: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
@pytest.mark.parametrize(("kind", "wait"), [("copied", "partial"), ("anew", "method")])
class TestProcess:
    """One process, told line by line."""

    def test_it_reads_what_it_is_told_and_ends(self, tmp_path: Path, kind: str, wait: str) -> None:
        tiny.write({0: tiny.Trace(0, 1).op("aten::mm", 10, 5)}, tmp_path / "run")
        (tmp_path / "empty.json").write_bytes(b"")
        files = [next((tmp_path / "run").glob("*.json*")), tmp_path / "empty.json"]
        lines = [json.dumps({"path": str(path), "rank": 0, "key": path.stem}) for path in files]
        how, good, bad, end = said_by(LINES, kind, tmp_path / "cache", "null", *lines)
        assert how == wait
        assert good == '""'
        assert "is empty" in bad
        assert end.startswith("b''")
        assert end.endswith(" 0)" if kind == "copied" else " 0")
        stored = Cache(tmp_path / "cache").open(files[0].stem)
        assert stored is not None
        assert stored.table("ops")["name"].to_pylist() == ["aten::mm"]

    def test_one_that_fails_ends_without_a_word(self, tmp_path: Path, kind: str, wait: str) -> None:
        how, end = said_by(LINES, kind, tmp_path / "cache", "no manifest")
        assert how == wait
        assert end.startswith("b'' ")
        assert not end.endswith((" 0", " 0)"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
@pytest.mark.parametrize("kind", ["copied", "not awaited", "anew"])
def test_several_read_a_run_and_all_end(tmp_path: Path, kind: str) -> None:
    traces = {rank: tiny.Trace(rank, 6).op("aten::mm", 10, 5 + rank) for rank in range(6)}
    tiny.write(traces, tmp_path / "run")
    assert said_by(MANY, kind, tmp_path / "run", tmp_path / "cache") == [str([[5 + rank] for rank in traces])]
