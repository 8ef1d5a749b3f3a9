"""Real training libraries, each in two gloo processes, recorded by its adapter."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof.contract import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Runner = Callable[..., Path]
    Reader = Callable[[Path], dict[str, Any]]

pytestmark = pytest.mark.trainer


def manifest_of(folder: Path) -> Manifest:
    return Manifest.from_dict(json.loads((folder / "run.json").read_text()))


def gloo_arguments(trace: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(event["name"], event["args"]) for event in trace["traceEvents"] if event["name"].startswith("gloo:")]


def names(trace: dict[str, Any], prefix: str) -> Counter[str]:
    return Counter(event["name"] for event in trace["traceEvents"] if event["name"].startswith(prefix))


def check_whole(folder: Path) -> Manifest:
    manifest = manifest_of(folder)
    assert manifest.join_rate == {"0": 1.0, "1": 1.0}
    assert manifest.notes == []
    assert set(manifest.hosts) == {"0", "1"}
    assert manifest.processes_per_device == 2
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json.gz", "rank1.json.gz", "run.json"]
    return manifest


def test_a_plain_loop_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    folder = run_program("plain_loop.py")
    manifest = check_whole(folder)
    assert [group.axes for group in manifest.groups] == [["dp"], ["pp"], ["tp", "ep"], []]
    assert {tuple(group.ranks) for group in manifest.groups} == {(0, 1)}
    assert manifest.stages == {"0": [0], "1": [1]}
    assert manifest.coordinates == {"0": {"dp": 0}, "1": {"dp": 1}}
    assert manifest.faults == [{"kind": "slow_rank", "rank": 1, "factor": 2.0}]
    assert manifest.model is not None
    assert set(manifest.model.flop_per_token) == {"palm", "matmul", "causal"}
    default, pipeline, tensor, log = (group.name for group in manifest.groups)
    for rank in (0, 1):
        trace = read_trace(folder / f"rank{rank}.json.gz")
        events = gloo_arguments(trace)
        by_size = {args["In msg nelems"]: args["Process Group Name"] for _, args in events if "In msg nelems" in args}
        assert {by_size[size] for size in (102, 103)} == {default}
        assert {by_size[size] for size in (202, 203)} == {tensor}
        assert by_size[12] == tensor
        same = Counter(args["Process Group Name"] for _, args in events if args["In msg nelems"] == 7)
        assert same == {pipeline: 2, tensor: 2}
        assert {args["Process Group Name"] for name, args in events if name == "gloo:barrier"} == {log}
        sends = [args for name, args in events if name == "gloo:send"]
        assert {(args["Src Rank"], args["Dst Rank"], args["Process Group Name"]) for args in sends} == {
            (rank, 1 - rank, pipeline)
        }
        assert names(trace, "train::") == {"train::forward": 2, "train::optimizer": 2, "train::log": 2}
        assert trace["usp_prof"]["name"] == "plain"


def test_fsdp2_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    folder = run_program("fsdp2_loop.py")
    manifest = check_whole(folder)
    assert manifest.mesh == {"dp_shard": 2}
    assert manifest.tokens_per_step == 2 * 8
    assert [group.axes for group in manifest.groups] == [["dp_shard"]]
    events = gloo_arguments(read_trace(folder / "rank1.json.gz"))
    kinds = Counter(args["Collective name"] for _, args in events)
    assert set(kinds) == {"_allgather_base", "_reduce_scatter_base"}
    scattered = [args for _, args in events if args["Collective name"] == "_reduce_scatter_base"]
    assert all(args["In msg nelems"] == 2 * args["Out msg nelems"] for args in scattered)


def test_transformers_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    pytest.importorskip("transformers")
    folder = run_program("transformers_trainer.py") / "run"
    manifest = check_whole(folder)
    assert manifest.mesh == {"dp": 2}
    assert (manifest.gradient_accumulation, manifest.micro_batch_tokens, manifest.tokens_per_step) == (2, 32, 128)
    assert manifest.dtype == "fp32"
    assert manifest.model is not None
    assert (manifest.model.name, manifest.model.layers, manifest.model.sequence) == ("llama", 2, 16)
    trace = read_trace(folder / "rank0.json.gz")
    assert names(trace, "ProfilerStep") == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}
    assert names(trace, "train::") == {"train::fwd_bwd": 2, "train::optimizer": 2}


def test_lightning_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    pytest.importorskip("lightning")
    folder = run_program("lightning_trainer.py") / "run"
    manifest = check_whole(folder)
    assert manifest.mesh == {"dp": 2}
    assert (manifest.gradient_accumulation, manifest.micro_batch_tokens, manifest.tokens_per_step) == (2, 64, 256)
    assert manifest.options["strategy"] == "DDPStrategy"
    trace = read_trace(folder / "rank1.json.gz")
    assert names(trace, "ProfilerStep") == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}
    assert names(trace, "train::") == {"train::forward": 4, "train::backward": 4, "train::optimizer": 2}


def test_a_killed_rank_leaves_no_incomplete_file(run_program: Runner, read_trace: Reader) -> None:
    folder = run_program("dying_rank.py", fails=True)
    left = list(folder.glob("rank*"))
    assert [path.name for path in left] in (
        [],
        ["rank0.json.gz"],
    )  # torchrun may stop rank 0 before it writes its files
    for path in left:
        assert names(read_trace(path), "ProfilerStep") == {"ProfilerStep#1": 1}


def test_megatron_core_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1, in an environment apart")
    folder = run_program("megatron_loop.py")
    manifest = check_whole(folder)
    assert manifest.mesh == {"pp": 1, "dp": 1, "cp": 1, "tp": 2}
    assert manifest.coordinates == {str(rank): {"pp": 0, "dp": 0, "cp": 0, "tp": rank} for rank in (0, 1)}
    assert (manifest.micro_batches, manifest.micro_batch_tokens, manifest.tokens_per_step) == (6, 2 * 16, 12 * 16)
    (tensor,) = {group.name for group in manifest.groups if group.axes == ["tp"]}
    events = gloo_arguments(read_trace(folder / "rank1.json.gz"))
    assert {args["Process Group Name"] for name, args in events if name == "gloo:all_reduce"} == {tensor}


def installed(name: str, how: str) -> None:
    """Skip if a library is missing. It is not imported, because most start their own process."""
    if find_spec(name) is None:
        pytest.skip(f"{how}, in an environment apart")


def test_deepspeed_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    installed("deepspeed", "pip install deepspeed==0.19.8")
    folder = run_program("deepspeed_loop.py")
    manifest = check_whole(folder)
    assert manifest.mesh == {"pp": 1, "dp": 2, "cp": 1, "tp": 1}
    assert manifest.zero_stage == 1
    assert (manifest.gradient_accumulation, manifest.micro_batch_tokens, manifest.tokens_per_step) == (2, 12, 48)
    trace = read_trace(folder / "rank1.json.gz")
    # Two micro-batches to each of the two recorded steps.
    assert names(trace, "ProfilerStep") == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}
    assert names(trace, "train::") == {"train::forward": 4, "train::backward": 4, "train::optimizer": 4}
    data = {group.name for group in manifest.groups if group.axes == ["dp"]}
    reduced = {args["Process Group Name"] for _, args in gloo_arguments(trace) if args["In msg nelems"] > 1}
    assert reduced
    assert reduced <= data


def test_torchtitan_is_recorded(run_program: Runner, read_trace: Reader) -> None:
    installed("torchtitan", "pip install torchtitan==0.3.0")
    folder = run_program("torchtitan_loop.py")
    manifest = check_whole(folder)
    assert manifest.mesh == {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 2}
    assert (manifest.gradient_accumulation, manifest.micro_batch_tokens, manifest.tokens_per_step) == (4, 48, 192)
    assert manifest.dtype == "bf16"
    trace = read_trace(folder / "rank1.json.gz")
    assert names(trace, "ProfilerStep") == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}
    (tensor,) = {group.name for group in manifest.groups if group.axes == ["tp"]}
    assert {args["Process Group Name"] for _, args in gloo_arguments(trace)} == {tensor}
