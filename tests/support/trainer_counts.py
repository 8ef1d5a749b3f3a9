"""Counts by hand of a recorded run of the trainer: its FLOP in matrix products, its MFU, the efficiency of an op."""

from __future__ import annotations

from ast import literal_eval
from typing import TYPE_CHECKING

import numpy as np
import pytest

from usp_prof.analyses import kernels, mfu

if TYPE_CHECKING:
    from trainer.configuration.shape import ModelShape
    from usp_prof.analyses.measures.kernel_tally import OpStat
    from usp_prof.run import Run


def check_mfu(run: Run, shape: ModelShape, tokens: int, processes: int) -> None:
    """Check that MFU is 6 N + 12 L h s per token over the mean step and each process's share of the peak."""
    result = mfu.compute(run.tables)
    steps = [run.tables.columns("steps", rank) for rank in run.tables.ranks]
    seconds = float(np.mean([(of_rank["end_ns"] - of_rank["start_ns"]).mean() for of_rank in steps])) / 1e9
    flop = 6 * shape.parameters + 12 * shape.layers * shape.heads * shape.head_dim * shape.sequence
    assert result.convention == "palm"
    assert result.peak > 0, result.notes
    assert result.mfu == pytest.approx(flop * tokens / seconds / (processes * result.peak), rel=0.05)
    assert 0 < result.mfu < 1


def check_products(run: Run, shape: ModelShape, tokens: int) -> None:
    """Check that the FLOPs of plain products are those of layers and head: forward, and twice that in backward."""
    weights = shape.parameters - shape.vocab * shape.hidden - (2 * shape.layers + 1) * shape.hidden
    steps = sum(len(run.tables.columns("steps", rank)) for rank in run.tables.ranks)
    products = [op for op in kernels.compute(run.tables).ops if op.name in PRODUCTS]
    by_hand = 3 * 2 * weights * tokens * steps / len(run.tables.ranks)
    assert sum(op.flop for op in products) == pytest.approx(by_hand, rel=0.01)


def check_efficiency(run: Run) -> None:
    """Check that the efficiency of the longest op is 2 m n k per call over its kernel time and the roofline."""
    result = kernels.compute(run.tables)
    longest = max((op for op in result.ops if op.name in PRODUCTS), key=lambda op: op.time_ns)
    assert longest.flop == pytest.approx(longest.calls * _flop_of(longest))
    assert longest.rate == pytest.approx(longest.flop / longest.time_ns * 1e9)
    for op in result.ops:
        if op.is_bounded:
            assert 0 < op.efficiency <= 1, op


PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::_scaled_mm_v2")
"""Products of a whole batch of tokens with a weight; attention has ops of its own."""


def _flop_of(op: OpStat) -> int:
    """Return 2 m n k; the factors are the first two matrices of the arguments, after the addend of `addmm`."""
    matrices = [dims for dims in literal_eval(op.dims) if len(dims) == 2]
    (rows, inner), (_, columns) = matrices[-2:] if op.name == "aten::addmm" else matrices[:2]
    return 2 * rows * inner * columns
