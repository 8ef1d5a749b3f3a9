"""Names of device work and their kinds: one line per name, as profilers write it."""

from __future__ import annotations

import pytest

from usp_prof.tables.events.classification import WorkKind, classify, operation

COMMUNICATION = """
nccl | all_reduce | ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)
nccl | all_reduce | ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
nccl | all_gather | ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)
nccl | all_gather | ncclKernelAllGatherCtranDirect
nccl | other | ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)
rccl | all_reduce | rccl_AllReduce_Sum_bf16
msccl | other | mscclKernel_Sum_half_LL
msccl | all_reduce | void mscclpp::allreduce7<__half>
deepep | all_to_all | void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)
deepep | all_to_all | void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)
deepep | all_to_all | void deep_ep::internode::notify_dispatch<false, 8>(int const*)
deepep | all_to_all | void hybrid_ep::dispatch_kernel<hybrid_ep::Sm<2>>
hccl | all_reduce | hcom_allReduce__123
oneccl | all_reduce | oneccl_allreduce_kernel
nvshmem | other | nvshmemi_transfer_rma_nbi
nvshmem | all_to_all | void c10d::nvshmem_extension::allToAllV<16>(void*, void*)
symmetric_memory | all_reduce | void c10d::symmetric_memory::multimem_one_shot_all_reduce_kernel<float, 16>
symmetric_memory | all_reduce | void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>
symmetric_memory | all_gather | multimem_all_gather_kernel
symmetric_memory | reduce_scatter | void multimem_reduce_scatter_kernel<c10::BFloat16>
symmetric_memory | barrier | void c10d::symmetric_memory::barrier_kernel
symmetric_memory | other | wait_signal_kernel
symmetric_memory | all_to_all | _mxfp8_all_to_all_expert_major_kernel
symmetric_memory | all_to_all | _combine_all_to_all_kernel
symmetric_memory | all_to_all | _all_to_all_v_kernel
symmetric_memory | all_reduce | one_shot_all_reduce_bias_kernel
symmetric_memory | all_reduce | allreduce_one_shot_push_intra_node_kernel
symmetric_memory | reduce_scatter | kernel_ring_reduce_scatter_intra_node
symmetric_memory | all_gather | persistent_all_gather
userbuffers | other | userbuffers_fp16_sum_inplace_gpu_rw_ag
userbuffers | other | kuserbuffers_pushsend
custom_all_reduce | all_reduce | void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)
custom_all_reduce | all_reduce | void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)
custom_all_reduce | all_reduce | void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>
custom_all_reduce | all_reduce | void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport
custom_all_reduce | all_reduce | void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<2>
expert_all_to_all | all_to_all | void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>
expert_all_to_all | all_to_all | tensorrt_llm::kernels::moeAllToAllKernel
expert_all_to_all | all_to_all | kernel_combine_token_intra_node
expert_all_to_all | all_to_all | void pplx::AllToAllIntraNode::dispatchKernel<1>
mori | all_to_all | EpDispatchIntraNodeKernel_bf16
peer_memory | other | void push_pull_halos_1d_kernel<uint4, true, 4>
""".strip().splitlines()

COMPUTE = """
void at::native::batch_norm_gather_stats_channel_last_kernel
SyncBatchNorm_forward_kernel
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>
void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>>
void at::native::_scatter_gather_elementwise_kernel<128, 8>
void splitKreduce_kernel<32, 16, int, float>
all_reduce_scale_kernel
scale_all_reduce_kernel
_permute_for_all_to_all_kernel
all_to_all_unpack_kernel
all_gather_copy_in_kernel
void deep_ep::layout::get_dispatch_layout<256, 8, 4, 2>
moe_combine_kernel
attention_combine_kernel
flash_fwd_splitkv_combine_kernel
segment_reduce_kernel
warp_reduce_kernel
softmax_reduce
_reduce_grad_kernel
triton_poi_fused_all_reduce_add_3
triton_red_fused__to_copy_all_gather_into_tensor_wait_tensor_2
mega_kernel_dispatch_token_moe_grouped_gemm
_all_gather_matmul_kernel
Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64
""".strip().splitlines()


@pytest.mark.parametrize("line", COMMUNICATION)
def test_communication_kernels_are_recognized(line: str) -> None:
    library, op, name = line.split(" | ")
    assert (classify([name])[0], operation(name)) == ((WorkKind.COMMUNICATION, library), op)


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_kernels_with_similar_names_are_not_communication(name: str) -> None:
    assert classify([name])[0] == (WorkKind.COMPUTE, "")


def test_many_names_are_classified_like_single_ones() -> None:
    names = [*(line.split(" | ")[2] for line in COMMUNICATION), *COMPUTE, "", "größe", "a\nb"]
    many = classify([*names, *(f"elementwise_kernel_{number}" for number in range(1000))])
    assert many[: len(names)] == [classify([name])[0] for name in names]
    assert set(many[len(names) :]) == {(WorkKind.COMPUTE, "")}
