from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

import usp_prof
from usp_prof.analyses import host
from usp_prof.extras.synth.declaration import Declaration, Fault, FaultKind, Mesh, Work
from usp_prof.extras.synth.write import write
from usp_prof.model.selection import Selection
from usp_prof.report.sections.plain import listing_table

if TYPE_CHECKING:
    from pathlib import Path


def trace(rank: int = 0) -> Trace:
    return Trace(rank=rank, world=2).step(1, at=0, dur=100_000_000)


def values(result: host.HostResult) -> dict[tuple[str, object], float]:
    return {(value.metric.id, *value.dims.values()): value.value for value in result.values()}


def test_every_kind_of_launch_counts() -> None:
    """Another tool recognizes three names, so it misses a third of a compiled run's work and all AMD work."""
    run = trace()
    names = {
        "cudaLaunchKernel": "cuda_runtime", "cudaLaunchKernelExC": "cuda_runtime", "cuLaunchKernel": "cuda_driver",
        "cuLaunchKernelEx": "cuda_driver", "cudaGraphLaunch": "cuda_runtime", "hipLaunchKernel": "cuda_runtime",
        "hipExtModuleLaunchKernel": "cuda_runtime", "cudaMemcpyAsync": "cuda_runtime",
    }  # fmt: skip
    for number, (name, category) in enumerate(names.items()):
        at = 1_000 * number
        run.launch(number + 1, at, name=name, category=category).kernel(
            "k", at=at + 300, dur=50, correlation=number + 1
        )
    run.kernel("k", at=7_400, dur=10, correlation=5)
    result = host.compute(table_set(run))
    assert values(result)["launch_count",] == len(names)
    assert values(result)["launch_delay",] == 300
    assert {call.name: call.kernels for call in result.calls} == dict.fromkeys(names, 1) | {"cudaGraphLaunch": 2}


def test_a_launch_finds_the_queue_empty_if_no_work_is_pending() -> None:
    run = trace()
    run.kernel("a", at=1_000, dur=5_000, launch_at=0).kernel("b", at=6_000, dur=1_000, launch_at=2_000)
    run.kernel("c", at=9_000, dur=1_000, launch_at=8_000)
    assert values(host.compute(table_set(run)))["empty_queue_fraction",] == pytest.approx(2 / 3)


def test_full_queues_of_every_stream_are_measured() -> None:
    """Another tool keeps one stream per rank."""
    run, count = trace(), 1_030
    for stream in (7, 20):
        for number in range(count):
            run.kernel("k", at=50_000 + 100 * number, dur=100, stream=stream, launch_at=10 * number)
    result = host.compute(table_set(run))
    # Launched at 0, 10, ..., the 1,023rd at 10,220. From 50,100 on, they finish one by one.
    assert result.queues == ((0, 7, count, 50_800 - 10_220), (0, 20, count, 50_800 - 10_220))
    assert values(result)["queue_full_time", 0, 20] == 50_800 - 10_220
    other = trace().meta(deviceProperties=[{"id": 0, "name": "AMD Instinct MI300X"}])
    assert host.compute(table_set(other.kernel("k", at=10, dur=5, launch_at=0))).queues == ((0, 7, 1, 0),)


def test_a_rank_without_device_work_has_no_queue() -> None:
    """A CPU launches nothing, so an empty queue would be wrong."""
    result = host.compute(table_set(Trace(device="cpu").step(1, 0, 1_000).op("aten::mm", 10, 900)))
    (alone,) = result.ranks
    assert alone.deepest_queue == -1
    assert [column.head for column in listing_table(result.listing(), "Ranks").columns] == ["rank", "input"]
    assert {value.metric.id for value in result.values()} == {"input_time"}


def test_ranks_are_measured_separately() -> None:
    """Another tool never clears its list between ranks."""
    runs = {rank: trace(rank).kernel("k", at=1_000, dur=10, launch_at=100 * rank) for rank in (0, 1)}
    result = host.compute(table_set(runs))
    assert [(row.rank, row.launches, row.launch_delay_ns) for row in result.ranks] == [(0, 1, 1_000), (1, 1, 900)]
    assert [row.rank for row in host.compute(table_set(runs), Selection(ranks=(1,))).ranks] == [1]


def test_a_blocking_call_is_attributed_to_the_op_around_it() -> None:
    run = trace().op("aten::item", at=100, dur=5_000).op("aten::_local_scalar_dense", at=150, dur=4_000)
    run.launch(1, 200, 3_000, name="cudaStreamSynchronize")
    run.mark("my_eval", at=10_000, dur=2_000).launch(2, 10_500, 700, name="cudaDeviceSynchronize")
    run.event("train.py(7): wait", "python_function", 20_000, 5_000).launch(3, 20_100, 400, name="cudaMemcpy")
    run.launch(4, 30_000, 200, name="cudaEventSynchronize").launch(5, 40_000, 90, name="cudaMemcpyAsync")
    run.kernel("k", at=50_000, dur=10, launch_at=45_000)
    result = host.compute(table_set(run))
    assert [(sync.name, sync.cause, sync.time_ns) for sync in result.syncs] == [
        ("cudaStreamSynchronize", "aten::_local_scalar_dense", 3_000),
        ("cudaDeviceSynchronize", "my_eval", 700),
        ("cudaMemcpy", "train.py(7): wait", 400),
        ("cudaEventSynchronize", "", 200),
    ]
    assert values(result)["host_sync_time",] == 4_300
    assert values(result)["host_sync_time", "(no op known)"] == 200


def test_an_asynchronous_copy_of_pageable_memory_blocks() -> None:
    """The rule `blocking-copies` reports it, so the host's blocking calls must count it, too."""
    run = trace().op("aten::copy_", at=100, dur=5_000).launch(1, 200, 4_000, name="cudaMemcpyAsync")
    run.memcpy(at=4_000, dur=100, kind="DtoH (Device -> Pageable)", correlation=1)
    run.op("aten::copy_", at=10_000, dur=5_000).launch(2, 10_200, 4_000, name="cudaMemcpyAsync")
    run.memcpy(at=14_000, dur=100, kind="DtoH (Device -> Pinned)", correlation=2)
    result = host.compute(table_set(run))
    blocking = [(sync.name, sync.cause, sync.count, sync.time_ns) for sync in result.syncs]
    assert blocking == [("cudaMemcpyAsync", "aten::copy_", 1, 4_000)]


def test_a_loader_counts_under_the_names_that_findings_know() -> None:
    run = trace().mark("data_loader.next", at=0, dur=3_000).kernel("k", at=9_000, dur=10, launch_at=8_900)
    assert values(host.compute(table_set(run)))["input_time",] == 3_000


def test_data_loading_and_garbage_collection_are_measured() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    run = trace().mark(loader, at=0, dur=3_000).mark("train::input", at=1_000, dur=4_000)
    run.event("<built-in function collect>", "python_function", 6_000, 2_500)
    run.event("gc.py(12): inner", "python_function", 6_100, 100)
    value_of_metric = values(host.compute(table_set(run.kernel("k", at=9_000, dur=10, launch_at=8_900))))
    assert value_of_metric["input_time",] == 5_000
    assert value_of_metric["gc_time",] == 2_500


def test_without_stacks_garbage_collection_is_unknown_not_zero() -> None:
    result = host.compute(table_set(trace().kernel("k", at=100, dur=10, launch_at=50)))
    assert ("gc_time",) not in values(result)
    assert [note.code for note in result.notes] == ["no_python_functions"]


def test_ops_and_calls_of_all_ranks_are_sorted_longest_first() -> None:
    runs = {
        rank: trace(rank).op("aten::mm", at=100, dur=500 + 100 * rank).op("aten::add", at=5_000, dur=550)
        .kernel("k", at=7_000, dur=10, launch_at=6_000 + rank)
        for rank in (0, 1)
    }  # fmt: skip
    result = host.compute(table_set(runs))
    assert [(op.rank, op.name) for op in result.ops if op.name.startswith("aten")] == [
        (1, "aten::mm"), (0, "aten::add"), (1, "aten::add"), (0, "aten::mm"),
    ]  # fmt: skip
    times = [call.time_ns for call in result.calls]
    assert times == sorted(times, reverse=True)


def test_cpu_time_per_op_excludes_nested_ops() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=10_000)
    run.op("aten::linear", at=0, dur=1_000).op("aten::addmm", at=100, dur=800)
    result = host.compute(table_set(run))
    assert [(op.name, op.self_ns, op.total_ns) for op in result.ops] == [
        ("aten::addmm", 800, 800), ("aten::linear", 200, 1_000),
    ]  # fmt: skip
    assert ("launch_count",) not in values(result)
    assert [op.name for op in result.ops] == ["aten::addmm", "aten::linear"]


def test_a_synthetic_run_shows_its_pause_and_its_waits(tmp_path: Path) -> None:
    pause = Fault(FaultKind.GC_PAUSE, 1, delay_ns=2_000_000)
    write(Declaration(mesh=Mesh(dp=2), work=Work(steps=2), faults=(pause,)), tmp_path / "run")
    result = host.compute(usp_prof.open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables)
    table = result.to_pandas().set_index("rank")
    assert table.gc_ns[1] == 2_000_000
    assert table.input_ns.tolist() == [300_000, 300_000]
    assert {sync.cause for sync in result.syncs} == {"aten::_local_scalar_dense"}
    assert {call.name for call in result.calls} == {
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    }
