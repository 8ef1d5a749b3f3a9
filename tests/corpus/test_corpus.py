"""Reading of every real set, compared with a plain count over the raw JSON and known facts."""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import usp_prof
from usp_prof.inputs.discovery import discover

if TYPE_CHECKING:
    from usp_prof.run import Run

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
COMMUNICATION = re.compile(r"^nccl|multimem_all_reduce")


@dataclass(frozen=True)
class Known:
    """Known facts of a run: ranks, steps, axes, and amounts of device work and communication."""

    path: str
    ranks: int | list[int]
    steps: list[int]
    axes: dict[str, int]
    kernels: int
    collectives: int
    source: str = "profiler_step"
    run: int = 0


GLOO = {
    "5d-pp2-dp2-cp2-tp2-ep4-ring-16r": (16, {"pp": 2, "dp_shard": 2, "cp": 2, "tp": 2, "ep": 4}, 7344),
    "cp4-ring-contig-4r": (4, {"cp": 4}, 1368),
    "dp4-ep4-moe-4r": (4, {"dp_shard": 4, "ep": 4}, 296),
    "dp4-zero3-async-prefetch-4r": (4, {"dp_shard": 4}, 216),
    "dp4-zero3-straggler-r2-4r": (4, {"dp_shard": 4}, 216),
    "pp2-cp2-tp2-8r": (8, {"pp": 2, "cp": 2, "tp": 2}, 3560),
    "pp4-paced-1F1B-4r": (4, {"pp": 4}, 208),
    "pp4-paced-GPipe-4r": (4, {"pp": 4}, 208),
    "pp4-paced-InterleavedZeroBubble-4r": (4, {"pp": 4}, 464),
}
KNOWN = [
    *(Known(f"gloo/{name}", ranks, [2, 3], axes, 0, parts) for name, (ranks, axes, parts) in GLOO.items()),
    Known("megatron-tp8-a100", 8, [3], {"tp": 8}, 6216, 672),
    Known("megatron-tp2-v100", 2, [6], {"tp": 2}, 490, 26),
    Known("param-dlrm-8r", 8, [10], {"dp": 8}, 2244, 64),
    Known("torchrec-4r-v100", 4, [4, 5, 6], {"dp": 4}, 2852, 120),
    Known("torchrec-4r-two-runs", 4, [4, 5, 6], {"dp": 4}, 2848, 127),
    Known("torchrec-4r-two-runs", 4, [4, 5, 6], {"dp": 4}, 2870, 130, run=1),
    Known("nanogpt-compare/before", [0], [10, 11, 12, 13, 14], {"dp": 8}, 5586, 84),
    Known("nanogpt-compare/after", [0], [10, 11, 12, 13, 14], {"dp": 8}, 5595, 84),
    Known("single/b200-eager", [0], [0], {}, 929, 74, "window"),
    Known("single/h100-qwen", [0], [6], {}, 1707, 0),
    Known("single/mi300-resnet", [0], [15, 16, 17], {"dp": 8}, 3653, 17),
    Known("single/triton-compiled", [0], [0], {}, 12, 0, "window"),
    Known("single/v100-rank1-of-2", [1], [2, 3, 4, 5, 6], {"dp": 2}, 22290, 2020),
    Known("single/vllm-empty-device", [0], [0], {}, 434, 0, "window"),
    Known("odd/amd_trace", [0], [1], {}, 16, 0),
    Known("odd/cpu_only", [34], [551], {}, 0, 10),
    Known("odd/critical_path/benchmark_result_2869224_1695835535_trace.json.gz", [0], [0], {}, 98, 0, "window"),
    Known("odd/critical_path/event_sync_trace.json.gz", [0], [0], {}, 6, 0, "window"),
    Known("odd/mtia_inference_trace", [0], [0], {}, 1313, 0, "window"),
    Known("odd/nccl_parser_config", [0], [4, 5, 6], {"dp": 2}, 3774, 21),
    Known("odd/ns_resolution_trace", [0], [101, 102, 103, 104, 105], {}, 6095, 0),
]
HOST_ONLY = ["odd/distributed_info_unavailable", "odd/rank_non_gpu", "odd/rank_unavailable"]


def opened(expected: Known, cache: Path) -> tuple[Run, dict[int, Path]]:
    path = TRACES / expected.path
    run_files = discover(path).runs[expected.run]
    return usp_prof.open_run(path, run=run_files.name, cache_dir=cache), {
        file.rank: file.path for file in run_files.files
    }


def complete_events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        data = json.loads(file.read().decode("utf-8", "replace"), strict=False)
    events = data["traceEvents"] if isinstance(data, dict) else data
    return [event for event in events if event.get("ph") == "X"]


def counted(path: Path) -> tuple[int, int, set[int]]:
    """Count device work, communication and profiler steps with plain loops."""
    kernels, communication, steps = 0, 0, set()
    for event in complete_events(path):
        category, name = event.get("cat", ""), event.get("name", "")
        kernels += category in DEVICE_WORK
        if category == "kernel":
            communication += COMMUNICATION.search(name.removeprefix("void (anonymous namespace)::")) is not None
        if category == "user_annotation":
            communication += name.startswith("gloo:")
            steps |= {int(name[13:])} if re.fullmatch(r"ProfilerStep#\d+", name) else set()
    return kernels, communication, steps


def health(run: Run) -> dict[str, int]:
    count_by_code: dict[str, int] = {}
    for rank in run.ranks:
        rows = run.tables.columns("health", rank)
        for code, count in zip(rows["code"].tolist(), rows["count"].tolist(), strict=True):
            count_by_code[code] = count_by_code.get(code, 0) + count
    return count_by_code


@pytest.mark.parametrize("expected", KNOWN, ids=lambda k: f"{k.path}#{k.run}" if k.run else k.path)
def test_each_corpus_set_reads_as_recorded(expected: Known, cache: Path) -> None:
    run, files = opened(expected, cache)
    tables = run.tables
    wanted = list(range(expected.ranks)) if isinstance(expected.ranks, int) else expected.ranks
    assert list(run.ranks) == wanted
    kernels = {rank: len(tables.columns("kernels", rank)) for rank in run.ranks}
    parts = {rank: len(tables.columns("collectives", rank)) for rank in run.ranks}
    assert (sum(kernels.values()), sum(parts.values())) == (expected.kernels, expected.collectives)
    raw_steps: set[int] = set()
    for rank in {run.ranks[0], run.ranks[-1]}:  # plain loops are slow
        raw_kernels, raw_parts, raw_steps = counted(files[rank])
        assert (kernels[rank], parts[rank]) == (raw_kernels, raw_parts)
    for rank in run.ranks:
        steps = tables.columns("steps", rank)
        assert steps["step"].tolist() == expected.steps
        assert set(steps["source"].tolist()) == {expected.source}
        assert (steps["start_ns"][1:] == steps["end_ns"][:-1]).all() or not expected.kernels
    if expected.source == "profiler_step":
        skipped = raw_steps - set(expected.steps)
        assert (health(run).get("steps_without_work", 0) > 0) == bool(skipped)
    assert dict(tables.topology.axes) == expected.axes


@pytest.mark.parametrize("path", HOST_ONLY)
def test_a_gpu_job_recorded_without_gpu_events_keeps_its_host_ranges(path: str, cache: Path) -> None:
    run = usp_prof.open_run(TRACES / path, cache_dir=cache)
    collectives = run.tables.columns("collectives", run.ranks[0])
    events = [event for file in (TRACES / path).glob("*.gz") for event in complete_events(file)]
    assert collectives["op"].tolist() == ["all_to_all"] * 6
    assert len(collectives) == sum(event["name"].startswith("nccl:") for event in events)
    assert set(collectives["event"].tolist()) == {-1}
    assert health(run)["collectives_on_host_only"] == 6


@pytest.mark.parametrize("name", GLOO)
def test_gloo_work_is_in_the_group_that_the_flight_recorder_saw(name: str, cache: Path) -> None:
    run = usp_prof.open_run(TRACES / "gloo" / name, cache_dir=cache)
    checked = 0
    for rank in run.ranks:
        with gzip.open(TRACES / "gloo" / name / f"fr{rank}.json.gz") as file:
            entries = json.load(file)
        groups = run.tables.columns("collectives", rank)
        ops = run.tables.columns("ops", rank)
        ranges = {
            event: (start, start + dur)
            for event, start, dur in zip(*(ops[c].tolist() for c in ("event", "start_ns", "dur_ns")), strict=True)
        }
        rows = zip(groups["op_event"].tolist(), groups["group"].tolist(), strict=True)
        posted = sorted((*ranges[op], key) for op, key in rows if op >= 0)
        starts = [start for start, _, _ in posted]
        for entry in entries:
            place = bisect_right(starts, entry["time_created_ns"]) - 1
            if place < 0 or posted[place][1] < entry["time_created_ns"]:
                continue  # posted before or after the window
            checked += 1
            assert posted[place][2].split("@")[0] == entry["process_group"][0]
    assert checked >= 16


def test_launches_before_the_window_and_triton_launchers_are_recognized(cache: Path) -> None:
    run = usp_prof.open_run(TRACES / "nanogpt-compare/after", cache_dir=cache)
    events = complete_events(next((TRACES / "nanogpt-compare/after").glob("*.gz")))
    calls = {e["args"]["correlation"] for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    orphans = [e for e in events if e["cat"] in DEVICE_WORK and e["args"]["correlation"] not in calls]
    kernels = run.tables.columns("kernels", 0)
    assert int((kernels["launch_event"] < 0).sum()) == len(orphans)
    assert int(kernels["before_window"].sum()) == len(orphans) == health(run)["launched_before_window"]
    assert len(kernels) == sum(e["cat"] in DEVICE_WORK for e in events)


def test_launchers_that_name_a_stream_are_host_work(cache: Path) -> None:
    run = usp_prof.open_run(TRACES / "single/triton-compiled", cache_dir=cache)
    events = complete_events(next((TRACES / "single/triton-compiled").glob("*.gz")))
    launchers = [e["name"] for e in events if e["cat"] == "cpu_op" and "stream" in e.get("args", {})]
    work = [e["name"] for e in events if e["cat"] in DEVICE_WORK]
    assert len(launchers) == 4
    assert sorted(run.tables.columns("kernels", 0)["name"].tolist()) == sorted(work)
    assert run.tables.columns("ops", 0).matches("name", *launchers).sum() == len(launchers)


def test_step_windows_hold_what_their_marks_launched(cache: Path) -> None:
    run = usp_prof.open_run(TRACES / "torchrec-4r-v100", cache_dir=cache)
    path = discover(TRACES / "torchrec-4r-v100").runs[0].files[0].path
    events = complete_events(path)
    marks = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
    calls = {e["args"]["correlation"]: e["ts"] for e in reversed(events) if e["cat"] in ("cuda_runtime", "cuda_driver")}
    work = [(calls[e["args"]["correlation"]], e) for e in events
            if e["cat"] in DEVICE_WORK and e["args"]["correlation"] in calls]  # fmt: skip
    first = [min(e["ts"] for at, e in work if low <= at < high) for low, high in marks]
    last = max(e["ts"] + e["dur"] for at, e in work if any(low <= at < high for low, high in marks))
    steps = run.tables.columns("steps", 0)
    assert steps["start_ns"].tolist() == [ts * 1000 for ts in first]
    assert steps["end_ns"].tolist() == [*(ts * 1000 for ts in first[1:]), last * 1000]
