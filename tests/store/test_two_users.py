"""One store for two concurrent users: one reads while the other writes, and one has read-only access."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiny

from usp_prof.store.reading import read_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 6
OTHER_USER = 65_534
_OPEN = """
import json, os, sys
from usp_prof import open_run

def opened(store):
    run = open_run(sys.argv[1], cache_dir=store)
    rows = run.sql("SELECT rank, name FROM ops ORDER BY ALL").fetchall()
    return {"rows": rows, "health": sorted({row.code for row in run.health})}

if len(sys.argv) > 3:  # once before as root, since the other user may not read the interpreter's modules
    opened(sys.argv[2] + "-of-root")
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
print(json.dumps(opened(sys.argv[2])))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder accessible to every user, with a run and a store that the other user's group may write to."""
    folder = Path(tempfile.mkdtemp(prefix="usp-prof-two-users-"))
    folder.chmod(0o755)
    traces = {rank: tiny.Trace(rank, RANKS).op(f"aten::op{rank}", 10, 5).kernel("k", 20, 7) for rank in range(RANKS)}
    tiny.write(traces, folder / "run")
    store = folder / "store"
    store.mkdir()
    if is_root():
        os.chown(store, 0, OTHER_USER)
    store.chmod(0o2770)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def is_root() -> bool:
    return os.name == "posix" and os.geteuid() == 0


def opened_by(user: str, place: Path) -> subprocess.Popen[str]:
    """Open the run in a process with its own home folder, as another user if the tests run as root."""
    home = place / user
    home.mkdir()
    words = [sys.executable, "-c", _OPEN, str(place / "run"), str(place / "store")]
    if user == "other" and is_root():
        os.chown(home, OTHER_USER, OTHER_USER)
        words.append(str(OTHER_USER))
    where = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.Popen(words, env={**os.environ, **where}, text=True, stdout=subprocess.PIPE, cwd=place)


def answers_of(process: subprocess.Popen[str]) -> dict[str, list[object]]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    answer: dict[str, list[object]] = json.loads(out)
    return answer


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


ROWS = [[rank, f"aten::op{rank}"] for rank in range(RANKS)]


def test_one_user_reads_while_another_writes(place: Path) -> None:
    read_ranks(str(place / "run"), shard=(0, 2), cache_dir=place / "store")
    before = contents(place / "store")
    both = [opened_by(user, place) for user in ("one", "other")]
    answers = [answers_of(process) for process in both]
    assert [answer["rows"] for answer in answers] == [ROWS, ROWS]
    assert answers[0]["health"] == answers[1]["health"]
    assert "not_cached" not in answers[0]["health"]
    after = contents(place / "store")
    assert {name: after[name] for name in before} == before, "what was there stays"
    assert len([name for name in after if name.endswith("entry.json")]) == RANKS, "nothing is stored twice"


def test_a_user_with_read_access_reads_the_store(place: Path) -> None:
    read_ranks(str(place / "run"), cache_dir=place / "store")
    before = contents(place / "store")
    (place / "store").chmod(0o2550)
    process = opened_by("other", place)
    try:
        answer = answers_of(process)
    finally:
        (place / "store").chmod(0o2770)
    assert answer["rows"] == ROWS
    assert "not_cached" not in answer["health"]
    assert contents(place / "store") == before
