"""Kernel names as profilers write them (cut after the distinguishing part), and whether they use tensor cores."""

from __future__ import annotations

import pytest

from usp_prof.analyses.measures.device_bounds import Cores, cores, single_precision_arithmetic
from usp_prof.model.hardware import Precision

MATRIX = """
sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8
sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage6_warpsize2x2x1_tensor16x8x8
sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas
sm90_xmma_gemm_f64f64_f64f64_f64_nt_n_tilesize128x64x16_stage3_warpsize4x2x1_tensor16x8x8
sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage3_warpsize2x2x1
sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x64
nvjet_tst_192x8_64x8_4x1_v_bz_TNT
nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT
nvjet_sm100_tst_32x64_64x16_4x1_v_bz_splitK_TNN
nvjet_sss_tf32_128x256_TNT
ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_tn
ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn
ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn
volta_h884gemm_128x64_ldg8_nn
turing_h1688gemm_256x128_ldg8_stages_32x1_nn
turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1
turing_i8816gemm_int8_128x128_ldg16_stages_64x1_tn
ampere_i16832gemm_int8_256x128_ldg16_stages_64x3_nt
void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(Params)
void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>(Params)
void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1>(Params)
void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_tn_align8>(Params)
_ZN17cutlass__5x_cudnn6KernelI66cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x10_nhwc_align4EEvNT_6ParamsE
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized>>
cutlass3x_sm100_tensorop_s256x128x32gemm_bf16_bf16_f32_bf16_bf16_256x128x64
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0
cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0
cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_3
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>
void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>
void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>
void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2>>>>
kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o11101213
fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel<cutlass::bfloat16_t, cutlass::arch::Sm80>)
fmha_cutlassB_f16_aligned_128x128_k128_dropout_sm80
fmha_cutlassF_f32_aligned_64x64_rf_sm80
fmha_v2_flash_attention_bf16_64_64_S_qkv_128_causal_sm90_kernel_nl
void deep_gemm::sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0>
void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 128u>
void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>
void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1>
Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1
Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0
igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32_wt32x32x8_ws1x1
_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm
_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28Gridwise
_ZN7ck_tile6kentryILi1ENS_19FmhaBwdDQDKDVKernelINS_2
void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>
""".strip().splitlines()  # fmt: skip

ORDINARY = """
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x64x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4
sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1
sm70_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw
ampere_sgemm_128x64_tn
ampere_sgemm_64x32_sliced1x4_tn
volta_sgemm_128x32_nn
volta_dgemm_64x64_nn
volta_hgemm_128x64_nt
maxwell_sgemm_128x64_tn
ampere_scudnn_128x64_relu_small_nn_v1
volta_hcudnn_128x128_relu_interior_nn_v1
ampere_igemm_int8_128x128_ldg4_nt_v0
void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params)
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>
void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>
void gemmSN_NN_kernel<float, 256, 4, 2, 8, 3, 4, false>
void gemmk1_kernel<int, float, 256, 5, false, false>
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>
void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>
void cudnn::winograd_nonfused::winogradForwardConv4x4<float, float>
void fft2d_r2c_32x32<float, false, 0u, false>
void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float, float>
void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>
void vllm::paged_attention_v1_kernel<__half, __half, 128, 16, 128>
fmha_cutlassF_f32_aligned_64x64_rf_sm75
fmha_cutlassF_f16_notaligned_64x64_rf_sm50
miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1
naive_conv_ab_nonpacked_fwd_nchw_float_double_float
igemm_fwd_gtc_dynamic_nchw_kcyx_nkhw
Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0_APM1_ABV0_TT4_4_USFGRO0
""".strip().splitlines()  # fmt: skip

NO_PRODUCT = """
void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>
void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2>>
void flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>
void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>
void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<128>>>>
void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>>>>
_ZN7ck_tile6kentryILi2ENS_22FmhaBwdOGradDotOKernelINS_2
bwd_preprocess
void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast>
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>
SubTensorOpWithScalar1d
SubTensorOpWithCastTensor1d
batched_transpose_32x32_half
transpose_NCHW2CNHW_V2_2D_WG_off64
void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>
triton_poi_fused_gelu_mm_3
triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1
""".strip().splitlines()  # fmt: skip

GENERATED = [
    "triton_tem_fused_mm_4",
    "triton_mm",
    "triton_tem_fused_flex_attention_0",
    "attn_fwd",
    "bwd_kernel_dk_dv",
    "bwd_kernel_dq",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_32x256x256x1_swiglu",
    "matmul_kernel",
]

UNKNOWN = ["my_gemm", "gemm_kernel", "fused_moe_kernel"]


@pytest.mark.parametrize("name", MATRIX)
def test_tensor_core_kernels_are_recognized(name: str) -> None:
    assert cores(name) is Cores.MATRIX


@pytest.mark.parametrize("name", ORDINARY)
def test_kernels_without_tensor_cores_are_recognized(name: str) -> None:
    assert cores(name) is Cores.ORDINARY


@pytest.mark.parametrize("name", NO_PRODUCT)
def test_kernels_that_accompany_products_are_not_products(name: str) -> None:
    assert cores(name) is Cores.NO_PRODUCT


@pytest.mark.parametrize("name", GENERATED)
def test_the_data_type_decides_for_generated_kernels(name: str) -> None:
    assert cores(name, Precision.BF16) is Cores.MATRIX
    assert cores(name, Precision.FP32) is Cores.UNKNOWN
    assert cores(name, None) is Cores.UNKNOWN


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_unknown(name: str) -> None:
    assert cores(name, Precision.BF16) is Cores.UNKNOWN


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_tensor16x8x8", Precision.TF32),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4", Precision.TF32),
        ("cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x10_nhwc_align4", Precision.TF32),
        ("nvjet_sss_tf32_128x256_TNT", Precision.TF32),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", Precision.TF32),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x64x8_ffma", Precision.FP32),
        ("ampere_sgemm_128x64_tn", Precision.FP32),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0", Precision.FP32),
        ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", None),
        ("nvjet_sss_128x256_TNT", None),
        ("triton_tem_fused_mm_4", None),
        ("my_gemm", None),
    ],
)
def test_single_precision_kernels_reveal_their_arithmetic(name: str, arithmetic: Precision | None) -> None:
    assert single_precision_arithmetic(name) is arithmetic
