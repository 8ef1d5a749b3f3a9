"""Does a kernel run on the tensor (matrix) cores? Its name says so."""

from __future__ import annotations

import re
from functools import lru_cache

_MATRIX = re.compile(
    r"nvjet|tensorop|wgmma|gmma|hmma|imma|xmma|mma_|s16816|s1688|s884|h884|h1688|h16816|i16832|bf16_s\d+|tf32|"
    r"fmha|flash_(fwd|bwd)|flash::|cudnn_.*sdpa|cutlass.*sm(80|90|100)|_MI\d+x\d+|mfma|xdlops|_xdl_|igemm_.*gtcx|fp8|tcgen05",
    re.IGNORECASE,
)
_TF32 = re.compile(r"tf32|tensorop_s1688|_s1688(?!.*bf16)", re.IGNORECASE)


@lru_cache(maxsize=1 << 14)
def uses_matrix_cores(kernel: str) -> bool:
    """Say whether a kernel's name is that of a matrix-core kernel."""
    return _MATRIX.search(kernel) is not None


@lru_cache(maxsize=1 << 14)
def rounds_to_tf32(kernel: str) -> bool:
    """Say whether a kernel multiplies single-precision numbers as TF32."""
    return _TF32.search(kernel) is not None
