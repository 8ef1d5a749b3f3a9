"""Rules on configuration choices: pipelines, recomputation, tensor parallelism, links, odd sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from made_faults import run_of
from tiny import Trace, table_set

from usp_prof.contract import Manifest, ModelEntry
from usp_prof.findings.rules.kernels import WastedTiles
from usp_prof.findings.rules.links import LowBandwidth, WideTensorParallel
from usp_prof.findings.rules.needless_recompute import NeedlessRecompute, needed_bytes
from usp_prof.findings.rules.pipelines import FewMicroBatches, PipelineSchedule
from usp_prof.whatif.layout import Layout, memory_of

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US = 1_000


def pipeline_of(ranks: int, micro_batches: int) -> TableSet:
    work = f'{{"micro_batches": {micro_batches}, "schedule": "1F1B"}}'
    return run_of(f'{{"mesh": {{"pp": {ranks}}}, "work": {work}}}').tables


def test_few_micro_batches_are_named_with_the_bubble_that_they_leave() -> None:
    (draft,) = FewMicroBatches.look(pipeline_of(4, 4))
    assert draft.evidence["textbook_bubble_fraction"] == pytest.approx(3 / 7)
    assert str(draft.edit) == "schedule=same,m=8"


def test_four_micro_batches_for_each_rank_are_enough() -> None:
    assert list(FewMicroBatches.look(pipeline_of(2, 8))) == []


def test_pipeline_schedule_names_the_best_alternative() -> None:
    (draft,) = PipelineSchedule.look(pipeline_of(4, 4))
    assert draft.evidence["other_ns"] < draft.evidence["simulated_ns"]
    assert draft.edit.name == "schedule"
    assert draft.opportunity


def test_without_a_pipeline_there_is_no_other_schedule() -> None:
    assert list(PipelineSchedule.look(run_of('{"mesh": {"dp": 2, "pp": 1}}').tables)) == []


MODEL = ModelEntry(
    layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn_hidden=4096, vocab=32000, sequence=1024
)


def test_needless_recompute_states_the_memory_of_the_activations() -> None:
    layout = Layout(recompute="full", micro_batches=1, micro_batch_tokens=1024, dtype="bf16", model=MODEL)
    now, without_recompute = memory_of(layout), memory_of(replace(layout, recompute="none"))
    assert now is not None
    assert without_recompute is not None
    assert needed_bytes(layout) == without_recompute.activation_bytes - now.activation_bytes > 0
    assert needed_bytes(replace(layout, model=None)) == -1


def test_needless_recompute_applies_only_to_runs_that_recompute() -> None:
    trace = Trace().step(0, 0, 1_000 * US).op("aten::mm", 10 * US, 20 * US).kernel("gemm", 40 * US, 900 * US)
    manifest = Manifest(recompute="full", model=MODEL, micro_batch_tokens=1024)
    (draft,) = NeedlessRecompute.look(table_set(trace, manifest))
    assert str(draft.edit) == "recompute=none"
    assert "unknown" in str(draft.evidence["left_bytes"])
    assert list(NeedlessRecompute.look(table_set(trace, replace(manifest, recompute="none")))) == []


def on_hosts(*hosts: str, transfer_us: int = 10_000) -> TableSet:
    """Make two ranks whose tensor-parallel all-reduces move 64 MiB; 10 ms correspond to a bus bandwidth of 6.7 GB/s."""
    manifest = Manifest(
        device="NVIDIA H100 80GB HBM3", mesh={"tp": 2}, hosts={str(rank): host for rank, host in enumerate(hosts)}
    )
    traces = {rank: Trace(rank, 2).group("1", [0, 1], "mesh_tp") for rank in range(2)}
    for trace in traces.values():
        trace.metadata["deviceProperties"] = [{"id": 0, "name": manifest.device}]
        trace.step(0, 0, 60_000 * US)
        for number in range(4):
            at = (1 + 12 * number) * 1_000 * US
            trace.collective(
                "all_reduce", at, transfer_us * US, launch_at=at - 100 * US, group="1", nelems=1 << 24, sequence=number
            )
    return table_set(traces, manifest)


def test_tensor_parallelism_over_two_hosts_is_a_finding() -> None:
    (draft,) = WideTensorParallel.look(on_hosts("one", "other"))
    assert draft.where == {"axis": "tp"}
    assert draft.evidence["bus_bytes_per_second"] == pytest.approx((1 << 26) / 0.01, rel=0.01)
    assert draft.edit.name == "comm_faster"


def test_tensor_parallelism_inside_a_host_is_not_wide() -> None:
    assert list(WideTensorParallel.look(on_hosts("one", "one"))) == []


def test_low_bandwidth_expects_three_quarters_of_the_link() -> None:
    (draft,) = LowBandwidth.look(on_hosts("one", "one"))
    link = draft.evidence["link_bytes_per_second"]
    assert isinstance(link, float)
    assert draft.title.startswith("Collectives on tp reach ")
    assert draft.edit.name == "comm_faster"
    assert float(draft.edit.value) == pytest.approx(0.75 * link / ((1 << 26) / 0.01), rel=0.01)


def test_well_used_links_and_links_between_hosts_have_no_low_bandwidth() -> None:
    assert list(LowBandwidth.look(on_hosts("one", "one", transfer_us=200))) == []  # 335 GB/s
    assert list(LowBandwidth.look(on_hosts("one", "other"))) == []  # that is wide-tensor-parallel


def test_processes_that_share_a_device_have_no_low_bandwidth() -> None:
    tables = on_hosts("one", "one")
    assert tables.manifest is not None
    tables.manifest.processes_per_device = 2
    assert list(LowBandwidth.look(tables)) == []


def products(*sizes: int, wasted: float) -> TableSet:
    """Make matrix products of 4096 x 4096 x size; those of odd sizes take `wasted` times as long as necessary."""
    trace, at = Trace(), 0
    trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    for _ in range(4):
        for size in sizes:
            flop = 2 * 4096 * 4096 * size
            length = round(flop / 5e14 * 1e9 * (wasted if size % 128 else 1))
            types = ["c10::BFloat16"] * 2
            trace.op("aten::mm", at, 20 * US, dims=[[4096, 4096], [4096, size]], types=types)
            trace.kernel("gemm", at + 30 * US, length, launch_at=at + 5 * US)
            at += length + 40 * US
    return table_set(trace.step(0, 0, at))


def test_wasted_tiles_names_the_size_and_the_padding() -> None:
    (draft,) = WastedTiles.look(products(4096, 50257, wasted=2.0))
    assert draft.where == {"size": 50257}
    assert draft.advice == "Pad 50257 to 50304"
    assert float(draft.edit.value) == pytest.approx(2.0, rel=0.01)


def test_an_odd_size_that_is_equally_fast_is_not_wasted() -> None:
    assert list(WastedTiles.look(products(4096, 50257, wasted=1.0))) == []
