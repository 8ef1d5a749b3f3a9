"""Discovery: which files are traces, and of which rank and run, in folders written file by file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from usp_prof.inputs.discovery import Discovery, discover
from usp_prof.inputs.peek import rank_from_words, ranks_from_numbers
from usp_prof.model.errors import InputError, UspProfError

NOON = 1_700_000_000_000_000_000
MINUTE = 60_000_000_000


def trace(
    path: Path,
    rank: int | None = None,
    *,
    at: float = 1.0,
    base: int = 0,
    step: int = 1,
    world: int = 4,
    extra: list[dict[str, Any]] | None = None,
    device: str = "",
    noon: int = -1,
    **top: Any,
) -> Path:
    fields: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        fields["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    if noon >= 0:  # minutes after NOON; as in newer traces, the base time precedes the events
        fields["baseTimeNanoseconds"] = NOON + noon * MINUTE
    if device:
        fields["deviceProperties"] = [{"id": 0, "name": device}]
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": 1}
    ]
    events += extra or []
    text = json.dumps(
        {**fields, "traceEvents": events, **top, **({} if noon >= 0 else {"baseTimeNanoseconds": base})}
    ).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ranks(discovery: Discovery, run: int = 0) -> list[int]:
    return [file.rank for file in discovery.runs[run].files]


def codes(discovery: Discovery) -> dict[str, int]:
    return {row.code: row.count for row in discovery.health}


def test_a_folder_with_one_file_per_rank_is_one_run(tmp_path: Path) -> None:
    for rank in (3, 0, 2, 1):
        trace(tmp_path / f"host_{rank + 100}.169.pt.trace.json.gz", rank)
    discovery = discover(tmp_path)
    assert ranks(discovery) == [0, 1, 2, 3]
    assert [file.rank_source for file in discovery.runs[0].files] == ["distributedInfo"] * 4
    assert discovery.runs[0].name == tmp_path.name
    assert discovery.health == ()


def test_a_file_or_a_glob_is_a_run(tmp_path: Path) -> None:
    for rank in range(4):
        trace(tmp_path / f"r{rank}" / "trace.json", rank)
    assert ranks(discover(tmp_path / "r2" / "trace.json")) == [2]
    assert ranks(discover(str(tmp_path / "r[13]" / "*.json"))) == [1, 3]
    assert ranks(discover(tmp_path)) == [0, 1, 2, 3]
    assert ranks(discover(str(tmp_path / "r*"))) == [0, 1, 2, 3]


def test_minified_and_indented_files_have_the_same_rank(tmp_path: Path) -> None:
    # HTA's `"rank":\s+(\d+)` makes rank 0 of every minified file and keeps one of them (A10).
    for rank, options in enumerate(({"separators": (",", ":")}, {"indent": 2}, {}, {"separators": (",", ":")})):
        text = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": [{"ph": "X", "ts": 1}]}
        (tmp_path / f"{rank * 17}.json").write_text(json.dumps(text, **options))  # type: ignore[arg-type]
    assert ranks(discover(tmp_path)) == [0, 1, 2, 3]


def test_the_rank_after_the_events_is_found(tmp_path: Path) -> None:
    for rank in range(2):
        text = json.dumps({"traceEvents": [{"ph": "X", "ts": 1}], "distributedInfo": {"rank": rank}, "end": [{"a": 1}]})
        (tmp_path / f"{rank}.json").write_text(text)
        (tmp_path / "packed").mkdir(exist_ok=True)
        (tmp_path / "packed" / f"{rank + 2}.json.gz").write_bytes(
            gzip.compress(text.replace(f": {rank}}}", f": {rank + 2}}}").encode())
        )
    assert ranks(discover(tmp_path)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12.json", 12), ("rank-34.Jul_15_10.pt.trace.json.gz", 34), ("worker3_step_12.169.pt.trace.json", 3),
        ("modded-gpu-rank-00-chrome-trace.json.gz", 0), ("dp0_pp0_tp10_dcp0_ep10_rank10.json", 10),
        ("trace_8_rank_1.json", 1), ("host_24049.1698955364380200319.pt.trace.json", None), ("trace.json", None),
        ("frank3.json", None), ("rank7/trace.json", 7), ("rank_5/iteration_10.json.zst", 5),
    ],
)  # fmt: skip
def test_ranks_are_parsed_from_file_names(name: str, rank: int | None) -> None:
    assert rank_from_words(Path(name)) == rank


def test_bare_numbers_count_only_when_they_are_all_ranks() -> None:
    assert ranks_from_numbers([Path("m_0.json"), Path("m_1.json")]) == {Path("m_0.json"): 0, Path("m_1.json"): 1}
    assert ranks_from_numbers([Path("0/a7.json"), Path("1/a9.json")]) == {Path("0/a7.json"): 0, Path("1/a9.json"): 1}
    assert ranks_from_numbers([Path("m_3.json"), Path("m_7.json")]) is None
    assert ranks_from_numbers([Path("m_0.json")]) is None


def test_file_names_supply_missing_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        trace(tmp_path / f"rank{rank}.json")
    discovery = discover(tmp_path)
    assert ranks(discovery) == [0, 1, 2]
    assert {file.rank_source for file in discovery.runs[0].files} == {"name"}


def test_the_recorders_rank_takes_precedence(tmp_path: Path) -> None:
    trace(tmp_path / "a.json", usp_prof={"rank": 5})
    discovery = discover(tmp_path)
    assert [(file.rank, file.rank_source) for file in discovery.runs[0].files] == [(5, "manifest")]


def test_a_lone_file_without_a_rank_is_read_and_reported(tmp_path: Path) -> None:
    discovery = discover(trace(tmp_path / "profile.json"))
    assert ranks(discovery) == [0]
    assert codes(discovery) == {"rank_unknown": 1}
    assert discovery.health[0].severity == "error"


def test_several_files_without_a_rank_are_refused_with_a_list(tmp_path: Path) -> None:
    trace(tmp_path / "a.json")
    trace(tmp_path / "b.json")
    with pytest.raises(InputError, match=r"2 traces have no rank: .*a\.json, .*b\.json"):
        discover(tmp_path)


def test_a_file_without_a_rank_among_others_is_left_out_and_reported(tmp_path: Path) -> None:
    trace(tmp_path / "a.json", 0)
    trace(tmp_path / "b.json")
    discovery = discover(tmp_path)
    assert ranks(discovery) == [0]
    assert discovery.health[0].severity == "data_loss"


def gpu_trace(path: Path, rank: int | None, **fields: Any) -> Path:
    """Write a trace with one kernel."""
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2, "dur": 1}
    return trace(path, rank, extra=[kernel], **fields)


@pytest.mark.parametrize("name", ["host-gpu-0.frontend.json.gz", "frontend.json", "rank0/tokenizer.json"])
def test_a_frontend_trace_next_to_ranks_is_not_a_rank(tmp_path: Path, name: str) -> None:
    for rank in range(1, 4):
        gpu_trace(tmp_path / f"{rank}.json.gz", rank)
    trace(tmp_path / name)
    discovery = discover(tmp_path)
    assert ranks(discovery) == [1, 2, 3]
    assert [item.path.name for item in discovery.skipped] == [Path(name).name]
    assert [(row.code, row.severity) for row in discovery.health] == [("skipped_file", "info")]
    assert "without device" in discovery.health[0].detail


def test_a_frontend_trace_is_not_a_second_run_of_rank_0(tmp_path: Path) -> None:
    for rank in range(2):
        gpu_trace(tmp_path / f"rank{rank}.json", None)
    trace(tmp_path / "gpu0.frontend.json", at=900.0)
    discovery = discover(tmp_path)
    assert [ranks(discovery, run) for run in range(len(discovery.runs))] == [[0, 1]]


def test_cpu_ranks_with_a_rank_are_kept_with_gpu_ranks(tmp_path: Path) -> None:
    gpu_trace(tmp_path / "a.json", 0)
    trace(tmp_path / "b.json", 1)
    assert ranks(discover(tmp_path)) == [0, 1]


def test_a_rank_whose_kernels_are_missing_stays(tmp_path: Path) -> None:
    gpu_trace(tmp_path / "rank0.json", None)
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
    trace(tmp_path / "rank1.json", None, extra=[launch])
    assert ranks(discover(tmp_path)) == [0, 1]


class TestRuns:
    """Files that claim one rank are several runs."""

    def test_folders_separate_runs(self, tmp_path: Path) -> None:
        for run, at in (("iteration_10", 10.0), ("iteration_20", 20.0)):
            for rank in range(2):
                trace(tmp_path / run / f"rank{rank}_trace.json", rank, at=at, base=1_000)
        discovery = discover(tmp_path)
        assert [run.name for run in discovery.runs] == ["iteration_20", "iteration_10"]
        assert ranks(discovery, 1) == [0, 1]

    def test_a_folder_a_rank_below_a_folder_a_run(self, tmp_path: Path) -> None:
        for run in ("a", "b"):
            for rank in range(2):
                trace(tmp_path / run / f"rank{rank}" / "trace.json", rank)
        assert [run.name for run in discover(tmp_path).runs] == ["a", "b"]

    def test_profiler_steps_separate_runs(self, tmp_path: Path) -> None:
        for step in (3, 9):
            for rank in range(2):
                trace(tmp_path / f"worker{rank}.{step}.json", rank, step=step)
        assert [run.name for run in discover(tmp_path).runs] == ["step 3", "step 9"]

    def test_times_separate_runs_even_if_a_rank_is_missing(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0, at=0.5, base=1_700_000_000_000_000_000)
        trace(tmp_path / "b.json.gz", 1, at=9.0, base=1_700_000_100_000_000_000)
        trace(tmp_path / "c.json", 0, at=9.5, base=1_700_000_100_000_000_000)
        discovery = discover(tmp_path)
        assert [[file.path.name for file in run.files] for run in discovery.runs] == [
            ["c.json", "b.json.gz"],
            ["a.json"],
        ]
        assert discovery.runs[1].name == "2023-11-14T22:13:20Z"

    def test_each_run_can_be_opened_by_the_folder_and_its_name(self, tmp_path: Path) -> None:
        for step in (3, 9):
            for rank in range(2):
                trace(tmp_path / f"worker{rank}.{step}.json", rank, step=step)
        for name in ("step 3", "step 9"):
            discovery = discover(tmp_path / name)
            assert discovery.runs[0].name == name
            assert {file.step for file in discovery.runs[0].files} == {int(name.split()[1])}
            assert len(discovery.runs) == 2
        with pytest.raises(UspProfError, match="step 4"):
            discover(tmp_path / "step 4")

    def test_jobs_of_different_world_size_are_not_merged(self, tmp_path: Path) -> None:
        for rank in range(2):
            trace(tmp_path / f"a{rank}.json", rank, world=8, noon=0)
        for rank in range(2, 4):
            trace(tmp_path / f"b{rank}.json", rank, world=16, noon=1)
        discovery = discover(tmp_path)
        assert [(run.name, ranks(discovery, at)) for at, run in enumerate(discovery.runs)] == [
            ("world 16", [2, 3]), ("world 8", [0, 1]),
        ]  # fmt: skip

    def test_jobs_of_different_weeks_are_not_merged(self, tmp_path: Path) -> None:
        trace(tmp_path / "a" / "0.json", 0, noon=0)
        trace(tmp_path / "b" / "1.json", 1, noon=7 * 24 * 60)
        discovery = discover(tmp_path)
        assert [(run.name, ranks(discovery, at)) for at, run in enumerate(discovery.runs)] == [("b", [1]), ("a", [0])]

    def test_the_base_behind_the_events_counts(self, tmp_path: Path) -> None:
        trace(tmp_path / "0.json.gz", 0, at=1e9, base=NOON)
        trace(tmp_path / "1.json.gz", 1, at=9e9, base=NOON)
        assert [ranks(discover(tmp_path), run) for run in range(2)] == [[1], [0]]

    def test_jobs_on_different_devices_are_not_merged(self, tmp_path: Path) -> None:
        for rank, name in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")):
            trace(tmp_path / f"{rank}.json", rank, device=name)
        assert [len(run.files) for run in discover(tmp_path).runs] == [1, 1]

    def test_one_job_on_two_kinds_of_device_is_one(self, tmp_path: Path) -> None:
        for rank, name in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")):
            trace(tmp_path / f"{rank}.json", rank, noon=0, device=name)
        assert ranks(discover(tmp_path)) == [0, 1]

    def test_a_rank_that_begins_late_within_the_others_span_is_of_their_job(self, tmp_path: Path) -> None:
        last = {"ph": "X", "cat": "cpu_op", "name": "end", "pid": 1, "tid": 1, "ts": 40 * 60e6, "dur": 1}
        trace(tmp_path / "0.json", 0, noon=0, extra=[last])
        trace(tmp_path / "1.json.gz", 1, noon=35)
        assert ranks(discover(tmp_path)) == [0, 1]

    def test_times_of_hosts_without_a_wall_clock_compare_with_nothing(self, tmp_path: Path) -> None:
        trace(tmp_path / "0.json", 0, at=10.0)
        trace(tmp_path / "1.json", 1, at=9e12)
        assert ranks(discover(tmp_path)) == [0, 1]

    def test_names_of_runs_are_unique(self, tmp_path: Path) -> None:
        for rank, world in ((0, 8), (1, 8), (0, 16)):
            for week in range(2):
                trace(tmp_path / f"{rank}{world}{week}.json", rank, world=world, noon=week * 10_000)
        names = [run.name for run in discover(tmp_path).runs]
        assert len(set(names)) == len(names) == 4

    def test_inseparable_runs_are_refused_with_a_list(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0)
        trace(tmp_path / "b.json", 0)
        with pytest.raises(InputError, match=r"several files claim rank 0.*a\.json.*b\.json"):
            discover(tmp_path)


class TestBeside:
    """Other files next to traces are recognized, skipped and named."""

    CASES = (
        ("et_0.json", b'{"schema": "1.0.1", "pid": 1, "nodes": [{"name": "rank", "id": 2}]}', "execution trace"),
        ("fr0.json.gz", gzip.compress(b'[{"record_id": 0, "collective_seq_id": 1}]', mtime=0), "flight-recorder dump"),
        ("fr.json", b'{"version": "2.4", "pg_config": {}, "entries": []}', "flight-recorder dump"),
        ("nccl_trace_rank_0", b"\x80\x04", "flight-recorder dump"),
        ("dedicated_log_torch_trace_rank_0.log", b"V0716 10:00:00 {}", "Dynamo log"),
        ("dynamo.json", b'V0716 10:11:12.5 1 torch/x.py:5] {"str": ["a", 1]}', "Dynamo log"),
        ("meta0.json", b'{"format": "x/0"}', "JSON, but not a trace"),
        ("list.json", b"[1, 2, 3]", "JSON, but not a trace"),
        ("text.json", b"hello", "not JSON"),
        ("empty.json", b"", "empty file"),
    )

    @pytest.mark.parametrize(("name", "data", "kind"), CASES)
    def test_kinds(self, tmp_path: Path, name: str, data: bytes, kind: str) -> None:
        trace(tmp_path / "rank0.json", 0)
        (tmp_path / name).write_bytes(data)
        discovery = discover(tmp_path)
        assert ranks(discovery) == [0]
        assert [(item.path.name, item.reason) for item in discovery.skipped] == [(name, kind)]
        assert codes(discovery) == {"skipped_file": 1}

    def test_the_manifest_and_hidden_files_are_no_news(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        (tmp_path / "run.json").write_text("{}")
        (tmp_path / "README.md").write_text("about")
        trace(tmp_path / ".cache" / "rank0.json", 0)
        discovery = discover(tmp_path)
        assert ranks(discovery) == [0]
        assert discovery.health == ()


@pytest.mark.parametrize("name", ["", "nothing", "no*thing"])
def test_missing_and_empty_paths_are_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        discover(tmp_path / name)
    assert caught.value.hint


def test_a_file_that_is_not_a_trace_is_identified(tmp_path: Path) -> None:
    (tmp_path / "et.json").write_text('{"schema": "1", "nodes": []}')
    with pytest.raises(InputError, match="execution trace"):
        discover(tmp_path / "et.json")
