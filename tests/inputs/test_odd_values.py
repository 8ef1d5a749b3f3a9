"""Damaged values: only the value is lost; the run is read, and a health row names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiny import Trace, table_set, write

from usp_prof.contract import parse_mark
from usp_prof.inputs.manifest import manifest_from, read_manifest
from usp_prof.limits import MAX_RANKS, parse_integer
from usp_prof.model.health import Severity
from usp_prof.run import Run, open_run

if TYPE_CHECKING:
    from pathlib import Path


def opened(folder: Path, trace: Trace) -> Run:
    return open_run(write({trace.rank: trace}, folder / "run"), cache_dir=folder / "cache")


def odd(run: Run) -> str:
    return "; ".join(row.detail for row in run.health if row.code == "odd_values")


def plain() -> Trace:
    return Trace(0, 1).step(0, 0, 9000).kernel("gemm", 2000, 600, launch_at=300)


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000, str(2**62 + 1), "٣", "", "-", "1.5"])
def test_text_that_is_not_a_number_is_none(text: str) -> None:
    assert parse_integer(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-7", -7), ("000012", 12), (str(2**62), 2**62)])
def test_text_that_is_a_number_is_read(text: str, number: int) -> None:
    assert parse_integer(text) == number


@pytest.mark.parametrize("value", [str(2**70), "9" * 5000, "-5"])
def test_an_invalid_stage_is_dropped_and_the_rest_of_the_mark_kept(value: str) -> None:
    mark = parse_mark(f"pp::F stage={value} mb=1")
    assert mark is not None
    assert (dict(mark.values), mark.odd) == ({"mb": 1}, ("stage",))


def test_invalid_marks_are_counted_in_health(tmp_path: Path) -> None:
    trace = plain().mark(f"pp::F stage={2**70} mb=0", 100, 50).mark("pp::F stage=0 mb=" + "9" * 5000, 200, 50)
    run = opened(tmp_path, trace)
    assert "numbers in marks" in odd(run)
    assert run.tables.columns("actions", 0)["stage"].tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("In msg nelems", 10**18), ("Group size", 10**17), ("Global rank start", 2**40), ("Dst Rank", -7)],
)
def test_an_invalid_argument_of_a_collective_is_absent(tmp_path: Path, key: str, value: int) -> None:
    trace = plain().group("1", [0], "mesh_tp").collective("all_reduce", 4000, 500, group="1", nelems=64)
    trace.events[-1]["args"][key] = value
    run = opened(tmp_path, trace)
    assert key in odd(run)
    assert len(run.tables.columns("collectives", 0)) == 1


@pytest.mark.parametrize(("key", "value"), [("grid", [2**31, 1, 1]), ("grid", [1, 2**17, 1]), ("block", [2**17, 1, 1])])
def test_an_invalid_grid_or_block_of_a_kernel_is_absent(tmp_path: Path, key: str, value: list[int]) -> None:
    trace = plain()
    trace.events[-1]["args"] |= {"grid": [4, 2, 1], "block": [128, 1, 1], key: value}
    run = opened(tmp_path, trace)
    assert key in odd(run)
    kernels = run.tables.columns("kernels", 0)
    expected = [-1, 128] if key == "grid" else [8, -1]
    assert [kernels["blocks"].tolist()[0], kernels["threads_per_block"].tolist()[0]] == expected


@pytest.mark.parametrize("ranks", [[0, True], [0, 10**17], [0, -1], [0, None], [0, 0.5]])
def test_invalid_ranks_of_a_group_are_dropped(tmp_path: Path, ranks: list[Any]) -> None:
    trace = plain().group("1", [0], "mesh_tp")
    trace.groups["1"]["ranks"] = ranks
    run = opened(tmp_path, trace)
    assert "pg_config.ranks of group '1'" in odd(run)
    assert run.tables.columns("groups", 0)["ranks"].tolist() == [""]


@pytest.mark.parametrize("size", [2**40, 10**7, -7, True])
def test_an_invalid_world_size_is_unknown_and_named(tmp_path: Path, size: int) -> None:
    trace = plain()
    assert trace.distributed is not None
    trace.distributed["world_size"] = size
    run = opened(tmp_path, trace)
    assert f"distributedInfo.world_size={size} (may be 1 to {MAX_RANKS})" in odd(run)
    assert "missing_ranks" not in {row.code for row in run.health}


def test_a_folder_named_after_an_impossible_rank_is_not_a_rank(tmp_path: Path) -> None:
    trace = plain()
    trace.distributed = None
    trace.write(tmp_path / "run" / "rank_9223372036854775808" / "trace.json")
    run = open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    assert run.ranks == (0,)
    assert "rank_unknown" in {row.code for row in run.health}


def test_an_event_far_from_all_others_is_left_out_and_counted(tmp_path: Path) -> None:
    run = opened(tmp_path, plain().kernel("late", 9 * 10**18, 600).op("aten::mm", 100, 500))
    assert [row.count for row in run.health if row.code == "unplaced_events"] == [1]
    assert run.tables.columns("kernels", 0)["name"].tolist() == ["gemm"]


def test_events_without_a_phase_are_reported(tmp_path: Path) -> None:
    trace = plain().op("aten::mm", 100, 500).op("aten::add", 700, 500)
    del trace.events[-1]["ph"]
    trace.events[-2]["ph"] = "?"
    run = opened(tmp_path, trace)
    assert [row.count for row in run.health if row.code == "events_without_phase"] == [2]
    assert not run.tables.columns("ops", 0)["name"].tolist()


def test_a_base_time_that_would_overflow_is_ignored_and_reported(tmp_path: Path) -> None:
    trace = Trace(0, 1, base=2**62).step(0, 9 * 10**18, 9000).kernel("gemm", 9 * 10**18 + 50, 600)
    run = opened(tmp_path, trace)
    assert "baseTimeNanoseconds" in odd(run)
    assert run.tables.columns("kernels", 0)["start_ns"].tolist() == [9 * 10**18 + 50]


@pytest.mark.parametrize("duration", [0, 2**62])
def test_kernels_with_impossible_durations_are_still_reported(duration: int) -> None:
    tables = table_set(plain().kernel("gemm", 3000, duration))
    assert tables.columns("kernels", 0)["dur_ns"].tolist() == [600, 0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"micro_batches": 10**9}, "micro_batches"),
        ({"tokens_per_step": 10**20}, "tokens_per_step"),
        ({"stages": {"0": [2**70]}}, "stages"),
        ({"mesh": {"dp": "many"}}, "mesh"),
        ({"mesh": {"dp": 0}}, "mesh"),
        ({"peak_flops": float("inf")}, "peak_flops"),
        ({"groups": [{"name": "g", "ranks": [0, True], "axes": ["dp"]}]}, "groups"),
        ({"groups": 3}, "groups"),
        ({"model": {"layers": -(2**70)}}, "model"),
        ({"coordinates": {"0": {"dp": 2**40}}}, "coordinates"),
        ({"zero_stage": True}, "zero_stage"),
    ],
)
def test_an_invalid_field_of_the_manifest_drops_only_that_field(change: dict[str, Any], field: str) -> None:
    manifest, health = manifest_from({"name": "job", "schedule": "1f1b", **change}, "run.json")
    assert manifest is not None
    assert (manifest.name, manifest.schedule) == ("job", "1f1b")
    assert [row.code for row in health] == ["odd_values"]
    assert field in health[0].detail


def test_a_duplicate_key_of_a_manifest_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'\xef\xbb\xbf{"name":"job","mesh":{"dp":2},"mesh":{"dp":4}}')
    manifest, health = read_manifest(tmp_path / "run.json")
    assert manifest is not None
    assert manifest.mesh == {"dp": 4}
    assert [(row.code, row.severity) for row in health] == [("odd_values", Severity.ERROR)]
    assert "mesh" in health[0].detail


def test_an_invalid_group_is_dropped_and_the_others_kept() -> None:
    good, bad = ({"name": name, "ranks": ranks, "axes": ["dp"]} for name, ranks in (("a", [0, 1]), ("b", [10**17])))
    manifest, health = manifest_from({"groups": [good, bad]}, "run.json")
    assert manifest is not None
    assert [group.name for group in manifest.groups] == ["a"]
    assert "groups[1]" in health[0].detail


def test_a_manifest_of_a_later_version_is_refused_with_a_hint() -> None:
    manifest, health = manifest_from({"version": 99, "name": "job"}, "run.json")
    assert manifest is None
    assert "update usp-prof" in health[0].detail


def test_fields_of_later_versions_are_ignored() -> None:
    manifest, health = manifest_from(
        {"name": "job", "colour": "blue", "groups": [{"name": "g", "ranks": [0], "axes": [], "x": 1}]}, ""
    )
    assert manifest is not None
    assert (manifest.name, manifest.groups[0].ranks, health) == ("job", [0], ())
