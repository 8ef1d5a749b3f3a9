"""Merged traces: one file with several ranks reads as those ranks, with the same figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import usp_prof
from usp_prof.analyses import breakdown
from usp_prof.export.merged_trace import export
from usp_prof.inputs.discovery import discover
from usp_prof.model.selection import EVERYTHING

if TYPE_CHECKING:
    from usp_prof.run import Run

TRACES = Path(__file__).parents[2] / "traces"


def traces(name: str) -> dict[int, dict[str, Any]]:
    files = sorted((TRACES / name).glob("rank*.json.gz"))
    return {number: json.loads(gzip.decompress(file.read_bytes())) for number, file in enumerate(files)}


def with_ranks_in_arguments(name: str) -> dict[str, Any]:
    """Merge like TraceLens: process and correlation ids are shifted, and each event names its rank."""
    events = []
    first_base = int(traces(name)[0].get("baseTimeNanoseconds", 0))
    for rank, trace in traces(name).items():
        base = int(trace.get("baseTimeNanoseconds", 0))
        for event in trace["traceEvents"]:
            args = dict(event.get("args") or {}) | {"rank": rank}
            if "correlation" in args:
                args["correlation"] += rank * 10**8
            pid = event.get("pid")
            shifted = event["ts"] + (base - first_base) / 1e3 if "ts" in event else None
            moved = event | {"args": args, "pid": pid + rank * 10**8 if isinstance(pid, int) else pid}
            events.append(moved | {"ts": shifted} if shifted is not None else moved)
    return {"traceEvents": events, "baseTimeNanoseconds": first_base}


def with_ranks_in_labels(name: str) -> dict[str, Any]:
    """Merge by hand: a metadata event at the end names each process after its rank."""
    merged = with_ranks_in_arguments(name)
    rank_of = {}
    for event in merged["traceEvents"]:
        rank_of[event.get("pid")] = event["args"].pop("rank")
    merged["traceEvents"] = [event for event in merged["traceEvents"] if event.get("ph") != "M"]
    merged["traceEvents"] += [
        {"args": {"labels": f"Rank {rank}"}, "ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": "process_labels"}
        for pid, rank in rank_of.items()
        if isinstance(pid, int)
    ]
    return merged


def assert_alike(merged: Run, own: Run) -> None:
    """Compare the partition of every step; times were written as decimals of microseconds."""
    assert merged.ranks == own.ranks
    merged_parts, own_parts = (breakdown.compute(run.tables).parts for run in (merged, own))
    assert merged_parts.rank.tolist() == own_parts.rank.tolist()
    assert merged_parts.step.tolist() == own_parts.step.tolist()
    for name in ("wall", "compute", "any_comm", "memcpy"):
        a, b = getattr(merged_parts, name), getattr(own_parts, name)
        assert np.abs(a - b).max() <= 1e-3 * own_parts.wall.max(), name
    assert any(row.code == "merged_trace" for row in merged.health) or len(own.ranks) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), [("recorded-1f1b", ".json.gz"), ("gpu-nccl-zero3", ".json")])
def test_our_own_export_of_all_ranks_reads_back(name: str, ending: str, tmp_path: Path) -> None:
    own = usp_prof.open_run(TRACES / name, cache_dir=tmp_path / "store")
    exported = tmp_path / f"all{ending}"
    export(own.tables, exported, EVERYTHING)
    assert_alike(usp_prof.open_run(exported, cache_dir=tmp_path / "store"), own)


@pytest.mark.slow
@pytest.mark.parametrize("merge", [with_ranks_in_arguments, with_ranks_in_labels])
def test_traces_merged_by_other_tools_read_as_their_ranks(merge: Any, tmp_path: Path) -> None:
    file = tmp_path / "merged.json"
    file.write_text(json.dumps(merge("gpu-nccl-zero3")), encoding="utf-8")
    own = usp_prof.open_run(TRACES / "gpu-nccl-zero3", cache_dir=tmp_path / "store")
    assert_alike(usp_prof.open_run(file, cache_dir=tmp_path / "store"), own)


def test_some_ranks_of_a_merged_trace_can_be_opened(tmp_path: Path) -> None:
    file = tmp_path / "merged.json"
    file.write_text(json.dumps(with_ranks_in_labels("gpu-nccl-zero3")), encoding="utf-8")
    assert usp_prof.open_run(file, ranks=[1], cache_dir=tmp_path / "store").ranks == (1,)


def test_a_trace_of_one_rank_is_not_merged() -> None:
    files = discover(TRACES / "gpu-nccl-zero3").runs[0].files
    assert [file.rank_source for file in files] == ["distributedInfo"] * 2
