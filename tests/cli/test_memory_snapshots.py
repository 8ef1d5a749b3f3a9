"""Memory snapshots in the report: peaks missing in the trace, and what holds the memory."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from tiny import Trace, write

from usp_prof.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def snapshot(in_use: int, peak: int, device: int = 0) -> dict[str, Any]:
    """Make a snapshot like `torch.cuda.memory._dump_snapshot`: a peak, then `in_use`, from two lines of code."""
    frames = [{"filename": "/home/me/model.py", "line": 42, "name": "forward"}]
    blocks = [
        {"size": in_use, "state": "active_allocated", "frames": frames},
        {"size": 4 * GIB - in_use, "state": "inactive", "frames": []},
    ]
    segment = {"device": device, "total_size": 4 * GIB, "allocated_size": in_use, "blocks": blocks}
    more = peak - in_use
    history = [
        {"action": "segment_alloc", "size": 4 * GIB, "time_us": 10, "addr": 1},
        {"action": "alloc", "size": in_use, "time_us": 20, "addr": 1},
        {"action": "alloc", "size": more, "time_us": 30, "addr": 2},
        {"action": "free_completed", "size": more, "time_us": 40, "addr": 2},
        {"action": "oom", "size": 99 * GIB, "time_us": 50, "addr": 0},
    ]
    return {"segments": [segment], "device_traces": [[]] * device + [history]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    traces = {}
    for rank in range(2):
        made = Trace(rank=rank, world=2).step(1, 0, 10_000).kernel("gemm", 100, 5_000, launch_at=10)
        traces[rank] = made.meta(deviceProperties=[{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 80 * GIB}])
    traces[1].memory(1_000, GIB, 2 * GIB)
    return write(traces, tmp_path / "run")


def save(path: Path, data: object) -> Path:
    path.write_bytes(pickle.dumps(data))
    return path


def metrics(text: str) -> dict[tuple[Any, ...], float]:
    return {(m["id"], *m["dims"].values()): m["value"] for m in json.loads(text)["metrics"]}


def test_a_snapshot_gives_the_peak_of_a_rank_whose_trace_has_none(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = save(tmp_path / "rank0_memory_snapshot.pickle", snapshot(GIB, 3 * GIB))
    second = save(tmp_path / "other.pickle", snapshot(GIB, 4 * GIB))
    words = ["--memory-snapshot", str(first), "--memory-snapshot", f"1={second}"]
    assert main(["analyze", str(run), "--format", "json", *words]) == 0
    values = metrics(capsys.readouterr().out)
    assert values["peak_memory", 0] == 3 * GIB
    assert values["peak_memory", 1] == 2 * GIB  # the trace's own events take precedence over the snapshot
    assert values["peak_memory",] == 3 * GIB
    assert values["memory_headroom", 0] == pytest.approx(76 / 80)
    assert values["fragmentation_fraction", 0] == 0.25
    assert values["peak_reserved_memory", 0] == 4 * GIB


def test_the_section_shows_totals_and_the_lines_that_hold_the_memory(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "s.pickle", snapshot(GIB, 3 * GIB))
    assert main(["analyze", str(run), "--section", "memory", "--memory-snapshot", f"0={path}"]) == 0
    text = capsys.readouterr().out
    assert "Memory snapshots" in text
    assert "model.py:42 forward" in text
    assert max(map(len, text.splitlines())) <= 80
    page = tmp_path / "report.html"
    assert main(["analyze", str(run), "--format", "html", "-o", str(page), "--memory-snapshot", f"0={path}", "-q"]) == 0
    assert "from the snapshots&#x27; histories" in page.read_text()


def test_a_snapshot_without_a_known_rank_is_shown_and_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "dump.pickle", snapshot(GIB, 3 * GIB, device=1))
    assert main(["analyze", str(run), "--format", "json", "--memory-snapshot", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "snapshot_of_no_rank" in {row["code"] for row in report["health"]}
    assert not [m for m in report["metrics"] if m["id"] == "peak_memory" and m["dims"].get("rank") == 0]


def test_contradictory_snapshot_options_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "s.pickle", snapshot(GIB, 2 * GIB))
    assert main(["analyze", str(run), "--memory-snapshot", f"7={path}"]) == 2
    assert "belongs to rank 7" in capsys.readouterr().err
    assert main(["analyze", str(run), "--memory-snapshot", str(tmp_path / "none.pickle")]) == 2
    assert "_dump_snapshot" in capsys.readouterr().err
