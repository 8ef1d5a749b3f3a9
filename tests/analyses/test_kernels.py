from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.analyses import kernels
from usp_prof.contract import Manifest
from usp_prof.extras.synth.declaration import Declaration, Mesh, Work
from usp_prof.extras.synth.simulation import Simulation
from usp_prof.extras.synth.write import write
from usp_prof.model.selection import Assumptions, Selection

if TYPE_CHECKING:
    from pathlib import Path

BF16 = "c10::BFloat16"
GEMM = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}


def values(result: kernels.KernelsResult) -> dict[tuple[str, str], float]:
    return {(value.metric.id, next(map(str, value.dims.values()), "")): value.value for value in result.values()}


def trace(**meta: Any) -> Trace:
    return Trace().meta(**(meta or H100)).step(1, at=0, dur=3_000_000)


def product(into: Trace, at: int, dur: int, *, kernel: str = GEMM, kind: str = BF16, external: int = 1) -> Trace:
    """Add a product of 1024 x 1024 matrices: 2 x 1024 ** 3 FLOP."""
    into.op("aten::mm", at=at, dur=90, dims=[[1024, 1024], [1024, 1024]], types=[kind, kind], external_id=external)
    return into.kernel(kernel, at=at + 1_000, dur=dur, launch_at=at + 10)


def test_efficiency_is_the_flops_of_an_op_over_kernel_time_and_peak() -> None:
    flop = 2 * 1024**3
    result = kernels.compute(table_set(product(trace(), at=0, dur=10_000)))
    (op,) = result.ops
    assert (op.name, op.calls, op.time_ns, op.flop, op.bound) == ("aten::mm", 1, 10_000, flop, "compute")
    assert values(result)["kernel_efficiency", ""] == pytest.approx(flop / 989e12 / 10e-6)
    assert values(result)["achieved_flop_rate", "matrix product"] == pytest.approx(flop / 10e-6)
    assert values(result)["formula_fraction", ""] == 1.0
    assert values(result)["matrix_core_fraction", "bf16"] == 1.0
    assert result.notes == ()


def test_efficiency_is_computed_per_step() -> None:
    run = Trace().meta(**H100).step(1, at=0, dur=50_000).step(2, at=50_000, dur=50_000)
    product(run, at=0, dur=10_000)
    product(run, at=20_000, dur=10_000, external=2)
    product(run, at=60_000, dur=40_000, external=3)
    run.kernel("splitKreduce_kernel", at=31_500, dur=10_000, launch_at=20_050)
    result = kernels.compute(table_set(run), Selection(last_step=2))
    best = 2 * 1024**3 / 989e12 * 1e9
    steps = {
        v.dims["step"]: v.value for v in result.values() if v.metric.id == "kernel_efficiency" and "step" in v.dims
    }
    assert steps == {1: pytest.approx(2 * best / 30_000), 2: pytest.approx(best / 40_000)}
    assert kernels.compute(table_set(run), Selection(first_step=2)).efficiency_by_step == {2: steps[2]}


def test_an_op_with_two_kernels_counts_its_flops_once() -> None:
    run = product(trace(), at=0, dur=10_000)
    run.kernel("splitKreduce_kernel", at=11_500, dur=2_000, launch_at=50)
    (op,) = kernels.compute(table_set(run)).ops
    assert (op.calls, op.kernels, op.time_ns, op.flop) == (1, 2, 12_000, 2 * 1024**3)


def test_kernels_belong_to_the_nearest_op_with_a_formula() -> None:
    run = trace().op("aten::linear", at=0, dur=500, dims=[[8, 4], [2, 4]], types=[BF16, BF16])
    run.op("aten::my_kernel_op", at=10, dur=100, dims=[[8, 4]], types=[BF16]).kernel("k", at=900, dur=70, launch_at=20)
    (op,) = kernels.compute(table_set(run)).ops
    assert (op.name, op.flop) == ("aten::linear", 2 * 8 * 4 * 2)


def test_flops_count_for_the_innermost_op_with_a_formula() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=10_000)
    run.op("aten::linear", at=0, dur=1_000, dims=[[8, 4], [2, 4]], types=["float", "float"])
    run.op("aten::t", at=10, dur=100, dims=[[2, 4]], types=["float"])
    run.op("aten::matmul", at=200, dur=700, dims=[[8, 4], [4, 2]], types=["float", "float"])
    run.op("aten::mm", at=300, dur=500, dims=[[8, 4], [4, 2]], types=["float", "float"])
    counted = [op for op in kernels.compute(table_set(run)).ops if op.flop]
    assert [(op.name, op.calls, op.flop) for op in counted] == [("aten::mm", 1, 2 * 8 * 4 * 2)]


def test_statistics_are_computed_over_single_calls() -> None:
    """Another tool averages the sums per name if there are more than ten names."""
    run = trace()
    for number in range(12):
        for call in range(number + 1):
            at = 1_000 * (100 * number + call)
            run.kernel(f"kernel_{number:02}", at=at, dur=100 + 20 * call, launch_at=at - 500)
    kernel_of_name = {kernel.name: kernel for kernel in kernels.compute(table_set(run)).kernels}
    durations = 100 + 20 * np.arange(12)
    last = kernel_of_name["kernel_11"]
    assert (last.count, last.total_ns, last.min_ns, last.max_ns) == (12, durations.sum(), 100, 320)
    assert last.mean_ns == pytest.approx(durations.mean())
    assert last.std_ns == pytest.approx(durations.std())


def test_single_precision_uses_the_tf32_peak_if_the_kernel_rounds() -> None:
    run = product(trace(), at=0, dur=10_000, kind="float", kernel="cutlass_80_tensorop_s1688gemm_128x128")
    product(run, at=20_000, dur=10_000, kind="float", kernel="sm80_sgemm_128x128")
    op_of_precision = {op.precision: op for op in kernels.compute(table_set(run)).ops}
    assert op_of_precision["tf32"].ideal_ns == pytest.approx(2 * 1024**3 / 494.7e12 * 1e9)
    assert op_of_precision["fp32"].ideal_ns == pytest.approx(2 * 1024**3 / 67e12 * 1e9)
    assert values(kernels.compute(table_set(run)))["matrix_core_fraction", ""] == 0.5


def test_a_product_in_several_kernels_counts_once_with_its_own_precision() -> None:
    """A reduction after a TF32 product used to count the same FLOP again, in single precision."""
    run = product(trace(), at=0, dur=10_000, kind="float", kernel="cutlass_80_tensorop_s1688gemm_128x128")
    run.kernel("void splitKreduce_kernel<32, 16, int, float>", at=11_500, dur=2_000, launch_at=50)
    (op,) = kernels.compute(table_set(run)).ops
    assert (op.precision, op.calls, op.flop, op.time_ns) == ("tf32", 1, 2 * 1024**3, 12_000)
    assert op.matrix_core_ns == 10_000


def test_an_op_whose_product_was_not_recorded_has_no_rate() -> None:
    """Its bias was copied within the step; its product ran in the next step or was lost."""
    run = trace().op("aten::addmm", at=0, dur=90, dims=[[1024], [1024, 1024], [1024, 1024]], types=[BF16] * 3)
    run.kernel("void at::native::elementwise_kernel<128, 2>", at=1_000, dur=2_000, launch_at=10)
    result = kernels.compute(table_set(run))
    assert [(op.name, op.family, op.flop, op.time_ns) for op in result.ops] == [("aten::addmm", "", 0.0, 2_000)]
    assert "kernel_efficiency" not in {name for name, _ in values(result)}


def test_plain_single_precision_does_not_use_matrix_cores() -> None:
    """`sm80_xmma` alone does not imply tensor cores; the data types decide."""
    plain = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma"
    rounded = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_tensor16x8x8"
    run = product(trace(), at=0, dur=50_000, kind="float", kernel=plain)
    product(run, at=100_000, dur=10_000, kind="float", kernel=rounded, external=2)
    value_of_metric = values(kernels.compute(table_set(run)))
    assert value_of_metric["matrix_core_fraction", ""] == pytest.approx(1 / 6)
    assert (value_of_metric["matrix_core_fraction", "fp32"], value_of_metric["matrix_core_fraction", "tf32"]) == (
        0.0,
        1.0,
    )


@pytest.mark.parametrize(("known_share", "shown"), [(10_000, False), (200_000, True)])
def test_the_share_of_unknown_kernels_is_stated(known_share: int, shown: bool) -> None:
    run = product(trace(), at=0, dur=known_share)
    product(run, at=300_000, dur=10_000, kernel="my_gemm", external=2)
    value_of_metric = values(kernels.compute(table_set(run)))
    assert value_of_metric["unknown_core_fraction", ""] == pytest.approx(10_000 / (10_000 + known_share))
    assert value_of_metric.get(("matrix_core_fraction", "")) == (1.0 if shown else None)


def test_single_precision_without_known_arithmetic_has_no_bound() -> None:
    result = kernels.compute(table_set(product(trace(), at=0, dur=60_000, kind="float", kernel="my_gemm")))
    (note,) = result.notes
    assert note.code == "precision_unknown"
    assert "dense peak" not in note.detail
    assert "kernel_efficiency" not in {name for name, _ in values(result)}


def test_an_op_faster_than_its_bound_has_no_efficiency() -> None:
    """Cached data arrives faster than the memory bandwidth allows."""
    run = product(trace(), at=0, dur=10_000)
    run.op("aten::lt", at=100_000, dur=90, dims=[[1 << 22], []], types=["float", "Scalar"])
    run.kernel("k", at=101_000, dur=5_000, launch_at=100_010)
    result = kernels.compute(table_set(run))
    value_of_metric = values(result)
    assert value_of_metric["kernel_efficiency", ""] == pytest.approx(2 * 1024**3 / 989e12 / 10e-6)
    assert ("kernel_efficiency", "elementwise") not in value_of_metric
    assert result.efficiency_by_step == {1: value_of_metric["kernel_efficiency", ""]}
    efficiency = dict(zip(result.listing()["op"], result.listing()["efficiency"], strict=True))
    assert np.isnan(efficiency["aten::lt"])
    assert [note.code for note in result.notes] == ["bound_beaten"]


def test_a_gpu_run_with_host_events_only_has_no_kernels() -> None:
    """Its op times are launch times on the host, so the rate would be 22.7 times an A100's peak."""
    run = trace().op("aten::mm", at=0, dur=4_000, dims=[[4096, 4096], [4096, 4096]], types=[BF16, BF16])
    result = kernels.compute(table_set(run))
    assert (result.ops, result.kernels, result.values()) == ((), (), [])


def test_a_fused_kernel_is_bound_by_memory() -> None:
    run = trace().op(
        "triton_poi_fused_add_0", at=0, dur=90, dims=[[1 << 20], [1 << 20], []], types=[BF16, BF16, "Scalar"]
    )
    run.kernel("triton_poi_fused_add_0", at=500, dur=2_000, launch_at=20)
    (op,) = kernels.compute(table_set(run)).ops
    assert (op.family, op.bytes, op.bound) == ("fused", 4 << 20, "memory")
    assert op.efficiency == pytest.approx((4 << 20) / 3.35e12 / 2e-6)


def test_an_unknown_device_gives_rates_but_no_efficiency() -> None:
    run = table_set(product(trace(deviceProperties=[{"id": 0, "name": "Quantum 9"}]), at=0, dur=10_000))
    result = kernels.compute(run)
    value_of_metric = values(result)
    assert ("kernel_efficiency", "") not in value_of_metric
    assert value_of_metric["achieved_flop_rate", ""] > 0
    assert [note.code for note in result.notes] == ["no_device_peak"]
    run = run.assuming(Assumptions(device="NVIDIA B200"))
    assert values(kernels.compute(run))["kernel_efficiency", ""] > 0
    run = run.assuming(Assumptions(peak_flops=1e15))
    assert values(kernels.compute(run))["kernel_efficiency", ""] == pytest.approx(2 * 1024**3 / 1e15 / 10e-6)


def test_a_precision_without_a_peak_is_reported() -> None:
    run = product(trace(deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-16GB"}]), at=0, dur=10_000)
    assert [note.code for note in kernels.compute(table_set(run)).notes] == ["no_precision_peak"]


def test_without_shapes_it_states_how_to_record_them() -> None:
    run = trace().op("aten::mm", at=0, dur=90).kernel(GEMM, at=500, dur=2_000, launch_at=20)
    result = kernels.compute(table_set(run))
    assert [note.code for note in result.notes] == ["no_shapes"]
    assert values(result)["formula_fraction", ""] == 0.0


def test_kernels_without_an_op_are_listed_separately() -> None:
    run = product(trace(), at=0, dur=10_000).kernel("graph_kernel", at=50_000, dur=90_000)
    product(run.step(2, at=3_000_000, dur=20_000), at=3_000_000, dur=10_000)
    result = kernels.compute(table_set(run), Selection(last_step=1))
    assert [note.code for note in result.notes] == ["kernels_without_op"]
    assert [op.name for op in result.ops] == ["(no CPU op known)", "aten::mm"]


def test_a_cpu_run_is_summed_by_op_and_compared_with_its_measured_peak() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=100_000)
    run.op("aten::mm", at=0, dur=50_000, dims=[[64, 64], [64, 64]], types=["float", "float"])
    manifest = Manifest(peak_flops=1e11, peak_source="measured", processes_per_device=2)
    result = kernels.compute(table_set(run, manifest))
    # Two processes share the machine, but one op may use all of it, so only the full peak is a bound.
    assert values(result)["kernel_efficiency", ""] == pytest.approx(2 * 64**3 / 1e11 / 50e-6)
    assert ("small_kernel_fraction", "") not in values(result)


def trace_with_op(kernel: str) -> Trace:
    """Concatenate a list of two tensors of 1,024 elements; profilers do not record the type of a list's tensors."""
    run = trace().op("aten::cat", at=0, dur=90, dims=[[[1024], [1024]], []], types=["TensorList", "Scalar"])
    return run.kernel(kernel, at=1_000, dur=2_000, launch_at=10)


def test_a_kernel_name_determines_the_type_of_listed_tensors() -> None:
    kernel_name = (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 1, 64, 64>"
    )
    result = kernels.compute(table_set(trace_with_op(kernel_name)))
    (op,) = result.ops
    assert (op.name, op.family, op.bytes, op.bound) == ("aten::cat", "elementwise", 2 * 2048 * 2, "memory")
    assert values(result)["formula_fraction", ""] == 1.0
    (silent,) = kernels.compute(table_set(trace_with_op("some_kernel"))).ops
    assert (silent.family, silent.bytes) == ("", 0)


def test_a_run_with_one_type_determines_the_type_of_its_lists() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=100_000)
    run.op("aten::cat", at=0, dur=50_000, dims=[[[8], [8]], []], types=["TensorList", "Scalar"])
    (op,) = kernels.compute(table_set(run, Manifest(dtype="fp32"))).ops
    assert op.bytes == 2 * 16 * 4
    (mixed,) = kernels.compute(table_set(run, Manifest(dtype="bf16"))).ops
    assert mixed.family == ""


def test_views_cost_nothing_and_their_time_counts_for_the_op_around_them() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=100_000)
    for at, dims in ((0, [[4, 4]]), (10_000, [[8, 8]])):
        run.op("aten::view", at=at, dur=5_000, dims=dims, types=["float"])
    run.op("aten::sum", at=20_000, dur=9_000, dims=[[4, 4]], types=["float"])
    run.op("aten::as_strided", at=20_100, dur=8_000, dims=[[4, 4]], types=["float"])
    result = kernels.compute(table_set(run))
    op_of_name = {op.name: (op.family, op.dims, op.calls, op.time_ns) for op in result.ops}
    assert op_of_name["aten::view"] == ("views and allocation", "", 2, 10_000)
    assert op_of_name["aten::sum"][0] == "reduction"
    assert "aten::as_strided" not in op_of_name
    assert values(result)["formula_fraction", ""] == 1.0


def test_paced_waits_belong_to_no_op_and_not_to_the_formula_fraction() -> None:
    run = Trace(device="cpu").step(1, at=0, dur=100_000).mark("pace::fwd", at=0, dur=60_000)
    run.op("aten::mm", at=60_000, dur=10_000, dims=[[8, 8], [8, 8]], types=["float", "float"])
    run.op("mylib::op", at=80_000, dur=10_000)
    result = kernels.compute(table_set(run))
    assert {op.name: op.time_ns for op in result.ops}["(paced wait)"] == 60_000
    assert values(result)["formula_fraction", ""] == 0.5
    assert "kernels_without_op" not in [note.code for note in result.notes]
    alone = kernels.compute(table_set(Trace(device="cpu").step(1, at=0, dur=9).mark("pace::fwd", at=0, dur=9)))
    assert "formula_fraction" not in {value.metric.id for value in alone.values()}


def test_only_the_selected_steps_count() -> None:
    run = product(Trace().meta(**H100).step(1, at=0, dur=6_000), at=0, dur=5_000)
    product(run.step(2, at=6_000, dur=8_000), at=6_000, dur=7_000)
    tables = table_set(run)
    assert kernels.compute(tables, Selection(first_step=2)).total_ns == 7_000
    assert kernels.compute(tables, Selection(ranks=(5,))).values() == []
    assert kernels.compute(tables).total_ns == 12_000


def test_the_tables_have_one_row_per_op_and_one_per_kernel() -> None:
    result = kernels.compute(table_set(product(trace(), at=0, dur=10_000)))
    assert result.to_pandas()[["op", "calls", "share"]].to_dict("records") == [
        {"op": "aten::mm", "calls": 1, "share": 1.0}
    ]
    assert result.top()[["name", "count", "mean_ns"]].to_dict("records") == [
        {"name": GEMM, "count": 1, "mean_ns": 10_000.0}
    ]


def test_a_synthetic_run_has_its_declared_flops(tmp_path: Path) -> None:
    import usp_prof  # noqa: PLC0415 - only here

    run = Declaration(mesh=Mesh(tp=2), work=Work(steps=2))
    write(run, tmp_path / "run")
    result = kernels.compute(usp_prof.open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables)
    logs = Simulation(replace(run)).logs
    made = sum(op.flop for log in logs for block in log.blocks for op in block.ops)
    assert sum(op.flop for op in result.ops) == pytest.approx(made)
    assert result.total_ns == sum(int(block.dur_ns.sum()) for log in logs for block in log.blocks)
