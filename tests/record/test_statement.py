from __future__ import annotations

import time
from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from usp_prof.contract import GroupEntry, Manifest
from usp_prof.record.options import resolve
from usp_prof.record.peak import Peak
from usp_prof.record.statement import Exchange, Part, begin, complete, complete_part, dtype_name, silent
from usp_prof.record.surroundings import Place, Topology

PLACE = Place(1, 4, "host", "cpu", "cpu", 1, 4)
TOPOLOGY = Topology({"pp": 2, "dp": 2}, {1: {"pp": 0, "dp": 1}}, [GroupEntry("0", [0, 1], ["dp"])])


def part(rank: int, host: str = "a", **values: object) -> Part:
    return Part(rank, host=host, device="cpu", device_key="cpu", **values)  # type: ignore[arg-type]


def test_declarations_are_in_the_manifest() -> None:
    given = {"schedule": "1F1B", "dtype": torch.bfloat16, "options": {"lr": 0.1, "of": (1, torch.int8)}, "stages": [3]}
    settings = resolve(given)
    manifest = begin(PLACE, TOPOLOGY, None, settings, Peak(5.0, "measured"))
    assert (manifest.schedule, manifest.dtype, manifest.peak_flops, manifest.peak_source) == (
        "1F1B",
        "bf16",
        5.0,
        "measured",
    )
    assert manifest.axis_order == ["pp", "dp"]
    assert manifest.options["of"] == [1, "torch.int8"]
    assert manifest.options["recorded"]["active"] == 2
    assert manifest.processes_per_device == 4
    part_of_rank = Part(1)
    complete_part(part_of_rank, PLACE, TOPOLOGY, settings)
    assert part_of_rank.stages == [3]


def test_a_declared_peak_takes_precedence() -> None:
    settings = resolve({"peak_flops": 7.0, "peak_source": "the vendor"})
    manifest = begin(PLACE, TOPOLOGY, None, settings, Peak(5.0, "measured"))
    assert (manifest.peak_flops, manifest.peak_source) == (7.0, "the vendor")


def test_parts_are_merged_by_group_object_not_by_ranks() -> None:
    parts = {
        0: part(0, groups=[asdict(GroupEntry("10", [0, 1], ["dp"])), asdict(GroupEntry("9", [0, 1], ["ep"]))]),
        1: part(1, groups=[asdict(GroupEntry("10", [0, 1], ["cp"]))], coordinates={"dp": 1}, stages=[2], join_rate=0.5),
        2: part(2, host="b", notes=["the disk is full"]),
    }
    merged = complete(Manifest(coordinates={"1": {"pp": 0}}), parts, 3)
    assert [(group.name, group.axes) for group in merged.groups] == [("9", ["ep"]), ("10", ["dp", "cp"])]
    assert merged.coordinates == {"1": {"pp": 0, "dp": 1}}
    assert merged.stages == {"1": [2]}
    assert merged.join_rate == {"1": 0.5}
    assert merged.hosts == {"0": "a", "1": "a", "2": "b"}
    assert merged.processes_per_device == 2
    assert merged.notes == ["rank 2: the disk is full"]


def test_a_single_rank_takes_the_number_of_local_ranks_from_torchrun() -> None:
    assert complete(Manifest(processes_per_device=4), {0: part(0)}, 4).processes_per_device == 4


def test_ranks_that_do_not_report_are_named() -> None:
    parts = {0: part(0, final=True), 1: part(1)}
    assert silent(parts, 3) == ["rank 1: did not end its recording", "rank 2: did not end its recording"]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, "fp32"), (torch.float16, "fp16"), ("fp8", "fp8"), ("", ""), (torch.int8, "int8")],
)
def test_dtypes_have_their_usual_names(dtype: object, name: str) -> None:
    assert dtype_name(dtype) == name


def test_rank_0_collects_the_parts_of_all_ranks() -> None:
    store = dist.HashStore()
    for rank in (1, 2):
        Exchange(3, 0, store).leave(Part(rank, host=f"h{rank}", join_rate=0.5, notes=["n"], final=True))
    first = Exchange(3, 0, store)
    first.leave(Part(0, host="h0"))
    parts = first.collect(wait_seconds=5)
    assert {rank: part.host for rank, part in parts.items()} == {0: "h0", 1: "h1", 2: "h2"}
    assert parts[1] == Part(1, host="h1", join_rate=0.5, notes=["n"], final=True)


def test_a_dead_rank_costs_the_time_limit_and_keeps_its_last_part() -> None:
    store = dist.HashStore()
    Exchange(3, 0, store).leave(Part(1, host="began"))
    first = Exchange(3, 0, store)
    first.leave(Part(0))
    start = time.monotonic()
    parts = first.collect(wait_seconds=0.2)
    assert time.monotonic() - start < 5
    assert sorted(parts) == [0, 1]
    assert parts[1].host == "began"


def test_a_tiny_time_limit_is_not_taken_for_no_limit() -> None:
    store = dist.HashStore()
    start = time.monotonic()
    assert Exchange(4, 0, store).collect(wait_seconds=0.0004) == {}
    assert time.monotonic() - start < 5


def test_sessions_do_not_mix() -> None:
    store = dist.HashStore()
    Exchange(2, 0, store).leave(Part(1, final=True))
    assert Exchange(2, 1, store).collect(wait_seconds=0) == {}


def test_without_a_store_a_rank_knows_only_itself() -> None:
    exchange = Exchange(2, 0, None)
    exchange.leave(Part(1))
    assert exchange.collect(wait_seconds=0) == {1: Part(1)}
