"""Device bounds: the peak rates that a run is compared with, and which kernels use matrix cores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from usp_prof.model import hardware
from usp_prof.model.hardware import Device, Precision
from usp_prof.model.health import HealthRow, Severity
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Roof:
    """Upper bounds of rates. Unknown rates are 0."""

    name: str
    device: Device | None
    stated: float
    source: str
    notes: tuple[HealthRow, ...] = ()
    sharers: int = 1
    """Processes that share one device: each has its share of the peak, but a single op may use all of it."""

    def op_peak(self, kind: Precision | None) -> float:
        """Return the dense peak that no single op can exceed, in FLOP per second."""
        return self.peak(kind) * self.sharers

    def peak(self, kind: Precision | None) -> float:
        """Return the dense peak for a precision, in FLOP per second."""
        if self.stated:
            return self.stated
        return self.device.peak(kind) if self.device is not None and kind is not None else 0.0

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth in bytes per second."""
        return self.device.memory_rate if self.device is not None else 0.0


def roof(tables: TableSet) -> Roof:
    """Return the bounds of the run's device."""
    assumed, declared = tables.assumptions, tables.declared
    name = assumed.device or _recorded(tables)
    device = hardware.find(name)
    if assumed.peak_flops:
        return Roof(name, device, assumed.peak_flops, "given by hand")
    if device is None and declared.peak_flops:
        shared = max(1, declared.processes_per_device)
        return Roof(name or "CPU", None, declared.peak_flops / shared, declared.peak_source or "manifest", (), shared)
    if device is not None:
        return Roof(name, device, 0.0, device.source)
    detail = f"the peak of {name!r} is unknown" if name else "the trace names no device"
    note = HealthRow(
        "no_device_peak", Severity.INFO, detail=f"{detail}, so MFU and efficiency are unknown; use --device NAME"
    )  # fmt: skip
    return Roof(name, None, 0.0, "", (note,))


def _recorded(tables: TableSet) -> str:
    names = sorted({str(name) for rank in tables.ranks for name in tables.columns("ranks", rank)["device"] if name})
    return names[0] if names else tables.declared.device


# Matrix cores: which kernels multiply on them, which on the ordinary lanes, and in which arithmetic.
#
# The kernel's name decides: the first pattern of `RULES` that matches counts. Names of generated kernels (Triton) do
# not show it. For them the data type decides, since 16-bit and 8-bit products always run on matrix cores. If neither
# decides, the kernel is unknown, and its share of time is reported.


class Cores(StrEnum):
    """Where a kernel computes its products."""

    MATRIX = "matrix"
    """Tensor cores (NVIDIA), matrix cores (AMD)."""
    ORDINARY = "ordinary"
    """The ordinary lanes: products by single multiply-adds."""
    NO_PRODUCT = "no product"
    """Copies, reductions, transposes: work that an op does in addition to its product."""
    UNKNOWN = "unknown"


def _rules(cores: Cores, *patterns: str) -> tuple[tuple[re.Pattern[str], Cores], ...]:
    return tuple((re.compile(pattern), cores) for pattern in patterns)


# Matrix instructions by their shape, as in `h884gemm`, `s1688fprop`, `s16816gemm`, `i8816gemm`, `d884gemm`.
_SHAPE = r"(?<![a-z0-9])[hisdb](884|8816|8832|1688|16816|16832|16864|88128)(?![0-9])"

RULES = (
    # Kernels without a product. They come first, since many names contain the name of the product's kernel.
    *_rules(
        Cores.NO_PRODUCT,
        r"(?i)splitk_?reduce|reduceSplitK|split_?kv?_?combine|FwdCombine|combine_kernel",
        r"(?i)flash_bwd_(dot_do_o|convert|clear)|BwdPreprocess|BwdPostprocess|bwd_preprocess|BwdOGradDotO|BwdConvertQ",
        r"(?i)nchwToNhwc|nhwcToNchw|(^|[^a-z])(batched_)?transpose(_|<|d_)|deep_gemm::transpose|^transpose",
        r"^SubTensorOp|computeOffsetsKernel|computeBOffsetsKernel|cublasLt::epilogue|globalKernel|scalePackedTensor",
        r"(?i)winograd.*(transform|GenerateWinograd|ForwardData|ForwardFilter|ForwardOutput|Delta)|generateWinograd",
        r"^(void )?at::native::(?!.*(depthwise|conv_))|^(void )?at_cuda_detail::|^(void )?cub::|^Mem(set|cpy)",
        r"^triton_(poi|red|per|for)_",
    ),
    # Multiply-adds on ordinary lanes. In `xmma_gemm_f32f32_f32f32_f32` the middle pair is the arithmetic: fp32.
    *_rules(
        Cores.ORDINARY,
        r"xmma_\w*?f32f32_f32f32_f32|_ffma|simt",
        r"(?i)(?<![a-z0-9])[sdhcz](gemm|symm|syrk|trsm|cudnn)(?![a-z])|convolve_[shdc]?gemm|implicit_convolve",
        r"(?i)gemv|gemmSN|gemmk1|gemmNSP|gemm_?NT?_?vec|(?<![a-z])dot_kernel|reduce_1Block|_igemm_int8",
        r"(?i)winograd|(?<![a-z])fft[12]d|(dgrad|wgrad|conv)2d_(grouped|alg|c1)|depthwise|conv_?2d_?grouped|dgrad_engine",
        r"(?i)wgrad_alg|cudnn::cnn::(wgrad|dgrad|conv)",
        r"miopenSp3AsmConv_v|^MIOpenConv|^gcnAsmConv|^naive_conv|igemm_(fwd|bwd|wrw)_gtc(n\d?)?_|(?<!x)dlops|DeviceGemmDl",
        r"fmha_cutlass[FB]_f32_\w*_sm(50|60|70|75)|fmha_cutlass[FB]_\w*_sm(50|60)",
        r"(?i)paged_attention_v[12]_kernel|gemm_4bit_inference_naive|BatchDecodeWith|SingleDecodeWith",
        r"^(Custom_)?Cijk_(?!.*(_MI\d+x\d+|MFMA|WMMA))",
    ),
    *_rules(
        Cores.MATRIX,
        r"^(Custom_)?Cijk_|(?i:xdlops|_xdl(?![a-z])|mfma|wmma)|igemm_(fwd|bwd|wrw)_gtcx",
        r"(?i)nvjet|tf32|tensorop|(wg|g|um|h|i|q|d|b)mma(?![a-z])|mma_sync|tcgen05|_tensor\d+x\d+x\d+|" + _SHAPE,
        r"xmma_\w*?(bf16bf16|f16f16|e[45]m[23]|i8i8|e2m1)|(?i:cutlass3x_sm\d+|cutlass.*sm(90|100|103|120)(?![0-9]))",
        r"(?i)flash_(fwd|bwd)|flashattn(fwd|bwd)|FlashAttention(Forward|Backward)|(?<![a-z])fmha|fmha_?v\d|sdpa|FmhaFwd",
        r"FmhaBwd|BatchPrefillWith|SinglePrefillWith|(?i:marlin(::|<|_)|ck_tile.*gemm|flash_?mla)",
        r"(?i)deep_gemm::|sm\d+_(fp8|bf16|fp4)\w*(gemm|mqa|moe)|fp8\w*_gemm|gemm\w*_fp8",
    ),
)
"""Patterns of public kernel names (NVIDIA, AMD, common libraries) and their cores. The tests have cases of each."""

# Generated kernels with a product: the data type shows whether it runs on matrix cores.
_GENERATED = re.compile(
    r"^triton_(tem|mm)|^_?(attn|_attn|flex)\w*(fwd|bwd)|^bwd_kernel_|^_(fwd|bwd)_kernel|matmul|grouped_(mm|gemm)|^_p?_?matmul_ogs"
)
_NARROW = (Precision.FP16, Precision.BF16, Precision.FP8)
# Single-precision inputs rounded to TF32. xFormers' single-precision attention uses three TF32 products per product.
_TF32 = re.compile(r"(?i)tf32|tensorop_s1688(?!\w*f16)|fmha_cutlass[FB]_f32_\w*_sm(8|9|1)\d")
# AMD's matrix cores also multiply in plain single precision.
_PLAIN_FP32 = re.compile(r"^(Custom_)?Cijk_|(?i:xdl|mfma)|igemm_(fwd|bwd|wrw)_gtcx")


@lru_cache(maxsize=1 << 14)
def cores(kernel: str, precision: Precision | None = None) -> Cores:
    """Return where a kernel multiplies, by its name and the data type of the op that launched it."""
    for pattern, where in RULES:
        if pattern.search(kernel):
            return where
    if precision in _NARROW and _GENERATED.search(kernel):
        return Cores.MATRIX
    return Cores.UNKNOWN


@lru_cache(maxsize=1 << 14)
def single_precision_arithmetic(kernel: str) -> Precision | None:
    """Return the arithmetic of a kernel's single-precision products, or `None` if its name does not show it."""
    if _TF32.search(kernel):
        return Precision.TF32
    where = cores(kernel, Precision.FP32)
    if where is Cores.ORDINARY or (where is Cores.MATRIX and _PLAIN_FP32.search(kernel)):
        return Precision.FP32
    return None
