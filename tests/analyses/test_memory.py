from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Trace, table_set

from usp_prof.analyses import memory
from usp_prof.analyses.memory_peaks import lifetimes
from usp_prof.analyses.result import impossible
from usp_prof.model.selection import Selection


def trace(rank: int = 0, **meta: object) -> Trace:
    made = Trace(rank=rank, world=2).meta(**meta).step(1, at=0, dur=10_000).step(2, at=10_000, dur=10_000)
    return made.kernel("k", at=100, dur=10, launch_at=50).kernel("k", at=10_100, dur=10, launch_at=10_050)


def values(result: memory.MemoryResult) -> dict[tuple[str, object], float]:
    return {(value.metric.id, next(iter(value.dims.values()), "")): value.value for value in result.values()}


def test_the_peak_comes_from_the_allocator_and_live_memory_is_split_by_phase() -> None:
    run = trace(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 10_000}])
    run.mark("Optimizer.step#AdamW.step", at=5_000, dur=500)
    run.memory(1_000, 300, 1_300, address=1).memory(2_000, 200, 1_500, address=2).memory(3_000, -300, 1_200, address=1)
    run.memory(5_100, 900, 2_100, address=3).memory(6_000, -900, 1_200, address=3)
    result = memory.compute(table_set(run))
    (peak,) = result.peaks
    assert (peak.allocated, peak.step) == (2_100, 1)
    assert peak.live == {"optimizer": 900, "other": 200, "before the recording": 1_000}
    value_of_metric = values(result)
    assert value_of_metric["peak_memory", ""] == value_of_metric["peak_memory", 0] == 2_100
    assert value_of_metric["memory_headroom", ""] == pytest.approx(0.79)
    assert value_of_metric["fragmentation_fraction", ""] == 0.0
    assert value_of_metric["live_at_peak", "optimizer"] == 900


def test_the_run_has_the_peak_of_its_fullest_rank() -> None:
    runs = {
        0: trace(0).memory(1_000, 100, 100).memory(11_000, 400, 500, address=2),
        1: trace(1).memory(1_000, 300, 300).memory(11_000, -300, 0),
    }
    tables = table_set(runs)
    assert values(memory.compute(tables))["peak_memory", ""] == 500
    first = memory.compute(tables, Selection(last_step=1))
    assert values(first)["peak_memory", ""] == 300
    assert first.to_pandas()[["rank", "peak_bytes"]].to_numpy().tolist() == [[0, 100], [1, 300]]
    assert "no_memory_events" in [note.code for note in memory.compute(table_set(trace())).notes]


def test_a_cpu_has_memory_since_the_profiler_started_but_no_peak() -> None:
    """PyTorch's CPU totals start at 0 with the profiler, so 300 bytes exclude 3 GB of weights."""
    run = Trace(device="cpu").step(1, at=0, dur=10_000).op("aten::mm", at=900, dur=400)
    result = memory.compute(table_set(run.memory(1_000, 300, 300)))
    value_of_metric = values(result)
    assert value_of_metric["taken_memory", ""] == 300
    assert not {"peak_memory", "memory_headroom", "fragmentation_fraction"} & {metric for metric, _ in value_of_metric}
    assert [note.code for note in result.notes] == ["memory_since_recording"]
    assert result.listing()["taken_bytes"] == [300]
    assert "peak_bytes" not in result.listing()


def test_totals_that_contradict_each_other_give_no_figures() -> None:
    """The fragmentation would be -4.5e15. One of the totals is wrong, but it is unknown which one."""
    run = trace().memory(1_000, 300, 1_300, address=1)
    run.memory(2_000, 4_503_599_627_370_496, 4_503_599_627_371_796, reserved=1, address=2)
    result = memory.compute(table_set(run))
    assert (result.peaks, [note.code for note in result.notes]) == ((), ["impossible_memory"])
    assert not [value for value in result.values() if value.metric.id != "allocator_calls"]


def test_a_device_smaller_than_its_contents_has_no_headroom() -> None:
    run = trace(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 100}])
    result = memory.compute(table_set(run.memory(1_000, 300, 1_300, address=1)))
    assert ("memory_headroom", "") not in values(result)
    assert np.isnan(result.listing()["headroom_fraction"][0])
    assert [row.code for row in impossible(result.values())] == ["impossible_figure"]


def test_copy_bandwidth_is_weighted_by_time() -> None:
    """Another tool averages the rates: it reports 505 GB/s for 11 MB in 1,001 us."""
    run = trace().memcpy(1_000, 1_000, size=1_000_000, launch_at=900)
    run.memcpy(3_000, 1_000_000, size=10_000_000, launch_at=2_500)
    run.memcpy(1_005_000, 100, size=8, kind="DtoH (Device -> Pinned)", launch_at=2_600)
    value_of_metric = values(
        memory.compute(table_set(run.step(3, at=20_000, dur=5).kernel("k", 1_006_000, 5, launch_at=20_001)))
    )
    assert value_of_metric["copy_bandwidth", "HtoD"] == pytest.approx(11_000_000 / 1_001_000 * 1e9)
    assert value_of_metric["copy_bandwidth", "DtoH"] == pytest.approx(8 / 100 * 1e9)


def test_allocator_calls_are_counted() -> None:
    run = trace().launch(90, 1_000, name="cudaMalloc").launch(91, 2_000, name="cudaFree")
    run.launch(92, 3_000, name="cudaMallocHost").launch(93, 12_000, name="cuMemAlloc_v2", category="cuda_driver")
    result = memory.compute(table_set(run), Selection(last_step=2))
    assert result.allocator_calls == {0: 1.5}
    assert values(result)["allocator_calls", ""] == 1.5
    assert result.copies == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=40))
def test_a_free_matches_the_last_allocation_at_its_address(allocations: list[tuple[int, int]]) -> None:
    """Allocate at free addresses and free occupied ones; a plain loop records the lifetimes."""
    address, size, freed, held = [], [], {}, {}
    for place, (where, amount) in enumerate(allocations):
        address.append(where)
        if where in held:
            freed[held.pop(where)] = place
            size.append(-amount)
        else:
            held[where] = place
            size.append(amount)
    freed_at = lifetimes(np.array(address, np.int64), np.array(size, np.int64))
    for place, amount in enumerate(size):
        if amount > 0:
            assert freed_at[place] == freed.get(place, len(allocations))
