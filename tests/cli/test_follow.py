"""Following a run during its recording, in a real process: files arrive one by one, incomplete ones wait."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import tiny

from usp_prof.cli.app import Exit, main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

DAMAGE = "truncated (rank"
RANKS = 2


@pytest.fixture
def traces(tmp_path: Path) -> list[bytes]:
    """Return the bytes of each rank's file."""
    made = {rank: tiny.Trace(rank, RANKS).step(1, at=0, dur=900).op("aten::mm", 10, 50) for rank in range(RANKS)}
    folder = tiny.write(made, tmp_path / "made")
    return [gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()) for rank in range(RANKS)]


@contextmanager
def following(folder: Path, patience: float) -> Iterator[subprocess.Popen[str]]:
    """Follow a folder; reports are written to `report.txt` next to it."""
    words = ["analyze", "--follow", folder, "--patience", patience, "--store", folder.parent / "store"]
    program = [sys.executable, "-m", "usp_prof.cli.app", *map(str, words)]
    with (
        (folder.parent / "report.txt").open("w") as report,
        subprocess.Popen(program, stdout=report, stderr=subprocess.PIPE, text=True, env=os.environ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(text: str, process: subprocess.Popen[str]) -> None:
    """Read the output until this text appears."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return
    pytest.fail(f"never said {text!r}: {lines}")


def test_ranks_are_shown_as_they_arrive_and_incomplete_files_wait(tmp_path: Path, traces: list[bytes]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    half = len(traces[0]) // 2
    (folder / "rank0.json").write_bytes(traces[0][:half])
    with following(folder, patience=3600) as process:
        wait_for("waiting: no trace", process)
        (folder / "rank1.json.tmp").write_bytes(traces[1])
        (folder / "rank1.json.tmp").rename(folder / "rank1.json")
        wait_for("ranks 1 of", process)
        with (folder / "rank0.json").open("ab") as file:
            file.write(traces[0][half:])
        wait_for("ranks 0-1 of", process)
        process.send_signal(signal.SIGINT)
        assert process.wait() == Exit.INTERRUPTED
    report = (tmp_path / "report.txt").read_text()
    assert report.count("no trace of rank 0 (1 of 2 ranks)") == 1
    assert DAMAGE not in report


def test_a_trace_cut_after_its_embedded_manifest_waits(tmp_path: Path) -> None:
    write(Declaration.from_dict({"mesh": {"dp": RANKS}, "work": {"steps": 2}}), tmp_path / "made", compress=False)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("run.json", "rank0.pt.trace.json"):
        shutil.copy(tmp_path / "made" / name, folder)
    complete = (tmp_path / "made" / "rank1.pt.trace.json").read_bytes()
    (folder / "rank1.pt.trace.json").write_bytes(complete[: complete.index(b'"traceEvents"')])
    with following(folder, patience=3600) as process:
        wait_for("ranks 0 of run, 1 file is still written", process)


def test_follow_ends_with_the_job_and_reports_incomplete_files(tmp_path: Path, traces: list[bytes]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(traces[0])
    (folder / "rank1.json").write_bytes(traces[1][:-40])
    with following(folder, patience=2) as process:
        wait_for("the job has ended: all ranks are there, and nothing changed for 2 s", process)
        assert process.wait() == 0
    assert DAMAGE in (tmp_path / "report.txt").read_text()


@pytest.mark.parametrize(
    "words", [("--format", "json"), ("--run", "all"), ("--patience", "-1"), ("--patience", "nan")], ids=" ".join
)
def test_follow_refuses_incompatible_options(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "--follow", str(tmp_path), *words]) == Exit.UNUSABLE
    assert "hint:" in capsys.readouterr().err
