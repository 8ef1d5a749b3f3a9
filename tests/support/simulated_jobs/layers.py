"""Layers: the parts of a training step that workloads share: batches, forward, backward, loss, optimizer and logging.

A rank's fault acts here, at places of the step that `fault_at` marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulated_jobs.devices import Program
from simulated_jobs.hosts import COMPUTE, Host
from simulated_jobs.options import Fault

_NATIVE = "at::native::(anonymous namespace)::"
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x"
    "_cublas"
)
GEMM_2 = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNN"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
SILU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel("
    "at::TensorIteratorBase&)::{lambda()#1}::operator()() const, std::array<char*, 2ul> >(int)"
)
NORM = f"void {_NATIVE}vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*)"
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_fwd_params)"
)
ADAM = (
    f"void {_NATIVE}multi_tensor_apply_kernel<{_NATIVE}FusedOptimizerTensorListMetadata<4>, "
    f"{_NATIVE}FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*>()"
)
FOREACH = (
    f"void {_NATIVE}multi_tensor_apply_kernel<{_NATIVE}TensorListMetadata<2>, "
    f"{_NATIVE}BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::multiplies<float>, float>()"
)
CROSS_ENTROPY = f"void {_NATIVE}cunn_SoftMaxForward<4, c10::BFloat16, float, float>()"
LOSS = f"void {_NATIVE}nll_loss_forward_reduce_cuda_kernel_2d<c10::BFloat16, float, long>()"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >()"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
CONCATENATE = f"void {_NATIVE}CatArrayBatchedCopy<{_NATIVE}OpaqueType<2u>, unsigned int, 2, 64, 64>()"


class Operation(NamedTuple):
    """One operation of a layer: its ops, its kernel in forward, and its autograd node."""

    op: str
    inner_op: str
    kernel: str
    us: float
    node: str


ATTENTION = (
    Operation("aten::layer_norm", "aten::native_layer_norm", NORM, 20, "NativeLayerNormBackward0"),
    Operation("aten::linear", "aten::addmm", GEMM, 180, "AddmmBackward0"),
    Operation("aten::mul", "", ELEMENTWISE, 25, "MulBackward0"),
    Operation(
        "aten::scaled_dot_product_attention",
        "aten::_flash_attention_forward",
        FLASH,
        160,
        "ScaledDotProductFlashAttentionBackward0",
    ),
    Operation("aten::linear", "aten::addmm", GEMM_2, 80, "AddmmBackward0"),
    Operation("aten::add", "", ELEMENTWISE, 15, "AddBackward0"),
)
MLP = (
    Operation("aten::layer_norm", "aten::native_layer_norm", NORM, 20, "NativeLayerNormBackward0"),
    Operation("aten::linear", "aten::addmm", GEMM, 300, "AddmmBackward0"),
    Operation("aten::silu", "", SILU, 40, "SiluBackward0"),
    Operation("aten::linear", "aten::addmm", GEMM_2, 160, "AddmmBackward0"),
    Operation("aten::add", "", ELEMENTWISE, 15, "AddBackward0"),
)
LAYER = ATTENTION + MLP


def _length_factor(host: Host, kernel: str) -> float:
    fault = host.active_fault("long_sequences")
    return fault.size if fault and "flash" in kernel else 1.0


def forward(host: Host, operations: Sequence[Operation], scale: float) -> Program[None]:
    """Run operations forward."""
    for operation in operations:
        host.spend(6.0)
        us = operation.us * scale * _length_factor(host, operation.kernel)
        with host.op(operation.op):
            if operation.inner_op:
                with host.op(operation.inner_op):
                    yield from host.launch(operation.kernel, us)
            else:
                yield from host.launch(operation.kernel, us)


def backward(host: Host, operations: Sequence[Operation], scale: float) -> Program[None]:
    """Run the backward of operations, last one first, on the autograd thread."""
    with host.autograd():
        for operation in reversed(operations):
            host.spend(3.0)
            us = operation.us * scale * _length_factor(host, operation.kernel)
            name = f"autograd::engine::evaluate_function: {operation.node}"
            with host.op(name, 2, 1), host.op(operation.node, 2.5, 1):
                if operation.node == "AddmmBackward0":
                    for kernel in (GEMM, GEMM_2):
                        with host.op("aten::mm"):
                            yield from host.launch(kernel, us)
                else:
                    yield from host.launch(backward_kernel(operation.kernel), us * 2)


def backward_kernel(kernel: str) -> str:
    """Return the name of a kernel's counterpart in backward."""
    return kernel.replace("flash_fwd", "flash_bwd")


def fault_at(host: Host, place: str, layer: int = 0, layers: int = 1) -> Program[None]:
    """Run the calls of this rank's fault, if it has one at this place of the step."""
    fault = host.active_fault()
    if fault is None:
        return
    is_here = place == fault.place and layer == layers // 2
    if fault.is_in_each_layer:
        is_here = place in ("forward", "backward")
    if not is_here:
        return
    with host.with_fault_draws():
        if fault.kind == "pause":
            host.now += fault.size * (1 + 0.1 * host.of_fault.random())
        elif fault.kind == "syncs":
            for _ in range(fault.count):
                yield from host.read_value(blocks=not fault.is_repaired)
        elif fault.kind == "allocations":
            yield from _allocate(host, fault)
        elif fault.kind == "copies":
            with host.op("aten::to", 3, 2), host.op("aten::_to_copy", 3, 2), host.op("aten::copy_", 3, 2):
                kind = "to device, pinned" if fault.is_repaired else "to device, pageable"
                yield from host.copy(kind, fault.size, int(fault.size * 20_000), blocks=not fault.is_repaired)
                if not fault.is_repaired:
                    yield from host.synchronize(host.last_work())


def _allocate(host: Host, fault: Fault) -> Program[None]:
    """Free cached memory, which waits for the device, and allocate again."""
    with host.op("aten::empty", 3, 1):
        for _ in range(fault.count):
            yield from host.synchronize(host.all_last_work(), "cudaFree")
        for _ in range(fault.count):
            start = host.now
            host.now += fault.size * host.of_fault.uniform(0.8, 1.2)
            host.call("cudaMalloc", start=start)


def load_batch(host: Host) -> Program[None]:
    """Take the next batch from the data loader and copy it to the device."""
    options, fault = host.options, host.active_fault("late_input")
    late_us = fault.size * host.of_fault.uniform(0.9, 1.1) if fault else 0.0
    kind = "_SingleProcess" if options.loader == "single" else "_MultiProcessing"
    with host.annotation(f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__", 20, 10):
        if options.loader == "single":
            with host.op("aten::stack", 30, 5):
                host.spend(120.0)
            host.now += late_us
        else:
            # One worker that makes batches one after the other, at most two ahead of the training.
            second_last_us = host.loaded_at[-2] if len(host.loaded_at) > 2 else 0.0
            making_us = options.load_us * float(np.exp(host.usual.normal(0, 0.1))) + late_us
            host.loader_ready = max(host.loader_ready, second_last_us) + making_us
            host.now = max(host.now, host.loader_ready)
            host.spend(30)
            host.loaded_at.append(host.now)
    with host.op("aten::to", 4, 2), host.op("aten::_to_copy", 3, 2), host.op("aten::copy_", 3, 2):
        if options.host_to_device == "pageable":
            yield from host.copy("to device, pageable", 40.0, 131_072, blocks=True)
            yield from host.synchronize(host.last_work())
        else:
            work = yield from host.copy("to device, pinned", 12.0, 131_072)
            if options.host_to_device == "sync":
                yield from host.synchronize([work])


def loss(host: Host) -> Program[None]:
    """Compute the loss."""
    host.spend(8)
    with host.op("aten::cross_entropy_loss", 5, 2):
        with host.op("aten::log_softmax", 3, 2):
            yield from host.launch(CROSS_ENTROPY, 120 * host.options.scale)
        with host.op("aten::nll_loss_nd", 3, 2):
            yield from host.launch(LOSS, 8)


def optimize(host: Host, kernels: int = 12, share: float = 1.0) -> Program[None]:
    """Clip gradients, update a share of the weights, and reset gradients."""
    scale = host.options.scale * share
    if host.options.clip:
        yield from _clip(host, 30 * scale + 3)
    yield from fault_at(host, "optimizer")
    with host.annotation("Optimizer.step#AdamW.step"):
        host.spend(60)
        with host.op("aten::_fused_adamw_", 40, 8):
            for _ in range(kernels):
                yield from host.launch(ADAM, 80 * scale + 4)
    with host.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
        host.spend(30)


def _clip(host: Host, us: float) -> Program[None]:
    with host.annotation("clip_grad_norm_"):
        with host.op("aten::_foreach_norm", 20, 5):
            for _ in range(3):
                yield from host.launch(FOREACH, us)
        with host.op("aten::linalg_vector_norm", 5, 3):
            yield from host.launch(REDUCE, 6)
        if host.options.clip == "sync":
            yield from host.read_value()
        with host.op("aten::_foreach_mul_", 15, 5):
            for _ in range(3):
                yield from host.launch(FOREACH, us)


def is_logged(host: Host) -> bool:
    """Return whether the loss is read in this step."""
    every = host.options.log_every
    return every > 0 and host.step % every == every - 1


def log(host: Host) -> Program[None]:
    """Read the loss, in the steps in which it is logged."""
    if is_logged(host):
        host.spend(5)
        yield from host.read_value()
        host.spend(40)


def copy_kernel(host: Host, op: str, us: float, stream: int = COMPUTE, kernel: str = COPY) -> Program[None]:
    """Run one op that copies or concatenates."""
    with host.op(op, 6, 3):
        yield from host.launch(kernel, us, stream)
