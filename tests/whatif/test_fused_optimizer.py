"""Fused optimizer: only elementwise kernels of known optimizers are fused."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.findings.rules.kernels import UnfusedOptimizer
from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.compute import updates
from usp_prof.whatif.predict import predict

US = 1_000
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
FOREACH = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<3>, PointwiseOpScalarListFunctor<float>>"
NORM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float>>"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
GEMM = "nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def run_of(optimizer: str, *kernels: str, steps: int = 3) -> Trace:
    """Make steps whose optimizer launches these kernels, 10 us apart, each 2 us long."""
    trace, at = Trace(), 1_000_000
    length = (20 + 10 * len(kernels)) * US
    for step in range(steps):
        trace.step(step, at, length).mark(f"Optimizer.step#{optimizer}.step", at + 15 * US, length - 16 * US)
        trace.kernel("gemm_of_the_model", at + 10 * US, 10 * US, launch_at=at)
        for place, name in enumerate(kernels):
            launched = at + (20 + 10 * place) * US
            trace.kernel(name, launched + 5 * US, 2 * US, launch_at=launched)
        at += length
    return trace


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "RMSprop", "Lion", "Adagrad", "FusedAdam", "DistAdam"])
def test_the_update_of_a_known_optimizer_is_fused(optimizer: str) -> None:
    tables = table_set({0: run_of(optimizer, *[ADD, FOREACH] * 30)})
    (draft,) = UnfusedOptimizer.look(tables)
    assert draft.evidence["kernels_per_step"] == 60
    # Of 620 us there stay the model's 20 us and 60 kernels of 2 us.
    assert predict(tables, [draft.edit]).gain_fraction == pytest.approx(1 - 140 / 620, abs=0.03)


@pytest.mark.parametrize("optimizer", ["Muon", "NorMuon", "MuonWithAuxAdam", "Shampoo", "SOAP", "MyOwn"])
def test_other_optimizers_are_not_fused(optimizer: str) -> None:
    tables = table_set({0: run_of(optimizer, *[GEMM, ADD] * 60)})
    assert list(UnfusedOptimizer.look(tables)) == []
    assert predict(tables, [parse_edit("fused_optimizer")]).gain_fraction == pytest.approx(0, abs=1e-6)


def test_products_collectives_norms_and_copies_are_not_fused() -> None:
    kernels = [GEMM, ALL_GATHER, NORM, COPY] * 15
    tables = table_set({0: run_of("AdamW", *kernels)})
    assert list(UnfusedOptimizer.look(tables)) == []
    assert not updates(graph_of(tables), tables)[0].any()
    assert predict(tables, [parse_edit("fused_optimizer")]).gain_fraction == pytest.approx(0, abs=1e-6)


def test_work_between_updates_keeps_its_launches() -> None:
    tables = table_set({0: run_of("AdamW", *[ADD, GEMM] * 60)})
    graph = graph_of(tables)
    update, launch = updates(graph, tables)
    names = np.array([*graph.names, ""])[graph.nodes.name]
    assert set(names[update]) == {ADD}
    assert update.sum() == launch.sum() == 180
    # Each product's launch still takes its host time: the step does not fall below those.
    gain = predict(tables, [parse_edit("fused_optimizer")]).gain_fraction
    assert 0 < gain < 0.55
