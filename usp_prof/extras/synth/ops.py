"""Ops of a layer: names, shapes and FLOP as recorded by PyTorch, and the part that one rank computes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from usp_prof.columns.arrays import Floats
from usp_prof.extras.synth.declaration import Declaration, Fault, FaultKind, Style
from usp_prof.extras.synth.mesh import Topology

ELEMENTWISE_SHARE = 0.04
"""Share of a block's time that each op without matrix products takes."""

_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"
_NORM = "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<8, at::native::silu_mul_kernel>"
_FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
_FLASH_BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>"
_ADAM = "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>>"


@dataclass(frozen=True, slots=True)
class Op:
    """One op: its CPU name, the kernel that it launches, its shapes as JSON text, FLOP, and share of its block."""

    name: str
    kernel: str
    dims: str
    types: str
    concrete: str
    flop: float
    weight: float


@dataclass(frozen=True, slots=True)
class Block:
    """Ops that run without communication between them; `share` is the block's part of the layer's time."""

    ops: tuple[Op, ...]
    share: float


class Catalog:
    """The blocks of a layer, from the declared shapes: the sizes that one rank sees."""

    def __init__(self, run: Declaration) -> None:
        shape, mesh = run.shape, run.mesh
        self.element = "c10::BFloat16" if run.style is Style.NCCL else "float"
        self.element_bytes = 2 if run.style is Style.NCCL else 4
        self.extra = run.speed.extra_kernels
        self.tokens = shape.sequence // mesh.cp
        self.hidden = shape.hidden
        self.heads = max(1, shape.heads // mesh.tp)
        self.kv_heads = max(1, shape.kv_heads // mesh.tp)
        self.head_dim = shape.hidden // shape.heads
        self.keys = shape.sequence
        self.ffn = max(1, shape.ffn_hidden // mesh.tp)
        self.vocab = max(1, shape.vocab // mesh.tp)
        self.layer_parameters = shape.hidden * (
            shape.hidden * 2 + 2 * shape.kv_heads * self.head_dim + 3 * shape.ffn_hidden
        )

    @property
    def activation_bytes(self) -> int:
        """Bytes of one micro-batch's hidden states on one rank."""
        return self.tokens * self.hidden * self.element_bytes

    @property
    def key_value_bytes(self) -> int:
        """Bytes of one rank's keys and values."""
        return 2 * self.tokens * self.kv_heads * self.head_dim * self.element_bytes

    @cached_property
    def forward(self) -> tuple[Block, ...]:
        """Attention and feed-forward, in forward."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = (
            self._pointwise("aten::_fused_rms_norm", _NORM, self.hidden),
            self._product(self.tokens, self.hidden, qkv),
            self._attention("aten::_scaled_dot_product_flash_attention", _FLASH, 4),
            self._product(self.tokens, self.heads * self.head_dim, self.hidden),
        )
        feed = (
            self._pointwise("aten::_fused_rms_norm", _NORM, self.hidden),
            self._product(self.tokens, self.hidden, 2 * self.ffn),
            self._pointwise("aten::mul", _POINTWISE, self.ffn),
            self._product(self.tokens, self.ffn, self.hidden),
        )
        return self._blocks(attention, feed)

    @cached_property
    def input_gradient(self) -> tuple[Block, ...]:
        """The part of backward that the previous stage waits for."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        feed = (
            self._product(self.tokens, self.hidden, self.ffn),
            self._pointwise("aten::mul", _POINTWISE, self.ffn),
            self._product(self.tokens, 2 * self.ffn, self.hidden),
            self._pointwise("aten::_fused_rms_norm_backward", _NORM, self.hidden),
        )
        attention = (
            self._product(self.tokens, self.hidden, self.heads * self.head_dim),
            self._attention("aten::_scaled_dot_product_flash_attention_backward", _FLASH_BACKWARD, 10),
            self._product(self.tokens, qkv, self.hidden),
            self._pointwise("aten::_fused_rms_norm_backward", _NORM, self.hidden),
        )
        return self._blocks(feed, attention)

    @cached_property
    def weight_gradient(self) -> tuple[Block, ...]:
        """The part of backward that no other stage waits for."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        feed = (
            self._product(self.ffn, self.tokens, self.hidden),
            self._product(self.hidden, self.tokens, 2 * self.ffn),
        )
        attention = (
            self._product(self.heads * self.head_dim, self.tokens, self.hidden),
            self._product(self.hidden, self.tokens, qkv),
        )
        return self._blocks(feed, attention)

    def head(self, kind: str) -> Block:
        """Return the output layer: forward (F), input gradient (I) or weight gradient (W)."""
        sizes = {
            "F": (self.tokens, self.hidden, self.vocab),
            "I": (self.tokens, self.vocab, self.hidden),
            "W": (self.hidden, self.tokens, self.vocab),
        }
        return Block(_weighted((self._product(*sizes[kind]),)), 1.0)

    def optimizer(self, kernels: int) -> tuple[Block, ...]:
        """Return the optimizer's step: one fused kernel, or many small ones."""
        if kernels == 1:
            return (Block((Op("aten::_fused_adamw_", _ADAM, "[]", "[]", "[]", 0.0, 1.0),), 1.0),)
        return (Block((Op("aten::add_", _POINTWISE, "[]", "[]", "[]", 0.0, 1 / kernels),) * kernels, 1.0),)

    def _product(self, rows: int, inner: int, columns: int) -> Op:
        return Op(
            "aten::mm", _GEMM, json.dumps([[rows, inner], [inner, columns]]),
            json.dumps([self.element, self.element]), '["", ""]', 2.0 * rows * inner * columns, 0.0,
        )  # fmt: skip

    def _pointwise(self, name: str, kernel: str, width: int) -> Op:
        dims = json.dumps([[1, self.tokens, width], [1, self.tokens, width]])
        return Op(name, kernel, dims, json.dumps([self.element] * 2), '["", ""]', 0.0, ELEMENTWISE_SHARE)

    def _attention(self, name: str, kernel: str, factor: int) -> Op:
        query = [1, self.heads, self.tokens, self.head_dim]
        keys = [1, self.kv_heads, self.keys, self.head_dim]
        flop = factor * self.heads * self.tokens * self.keys * self.head_dim / 2
        forward = ["", "", "", "0.", "True", "False", ""]
        concrete = forward if factor == 4 else [""] * 10 + ["0.", "True", "", "", ""]
        first = [query, keys, keys] if factor == 4 else [query, query, keys, keys, query]
        dims: list[list[int]] = [*first, *([[]] * (len(concrete) - len(first)))]
        types = [self.element] * len(first) + ["Scalar"] * (len(concrete) - len(first))
        return Op(name, kernel, json.dumps(dims), json.dumps(types), json.dumps(concrete), float(flop), 0.0)

    def _blocks(self, *parts: tuple[Op, ...]) -> tuple[Block, ...]:
        extra = tuple(self._pointwise("aten::add_", _POINTWISE, self.hidden) for _ in range(self.extra))
        total_flop = sum(op.flop for part in parts for op in part)
        return tuple(Block(_weighted((*part, *extra)), sum(op.flop for op in part) / total_flop) for part in parts)


def _weighted(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Divide a block's time: a small share for each op without FLOP (a third at most in total), the rest by FLOP."""
    idle = sum(1 for op in ops if not op.flop)
    small = min(ELEMENTWISE_SHARE, 1 / 3 / idle) if idle else 0.0
    flop = sum(op.flop for op in ops)
    weights = [(1 - small * idle) * op.flop / flop if op.flop else small for op in ops]
    return tuple(replace(op, weight=weight) for op, weight in zip(ops, weights, strict=True))


# Shares: how much of an equal share one rank computes (crowded experts, contiguous sequences, unequal lengths).


_SHORTEST = 0.2


class Uneven:
    """One rank's shares. The total work is unchanged: equal shares are 1 for all ranks."""

    def __init__(self, run: Declaration, topology: Topology, rank: int) -> None:
        self._run = run
        self._topology = topology
        self._rank = rank
        self._lengths: dict[int, Floats] = {}

    def share(self, step: int, micro_batch: int, *, feeds: bool) -> float:
        """Return a micro-batch's share of a block: of the feed-forward with its experts, or of attention."""
        share = 1.0
        for fault in self._run.faults:
            if fault.step not in (-1, step):
                continue
            if fault.kind is FaultKind.EXPERT_IMBALANCE and feeds:
                share *= self._crowded(fault)
            elif fault.kind is FaultKind.CONTIGUOUS_CP and not feeds:
                share *= (2 * self._topology.coordinates(self._rank)["cp"] + 1) / self._run.mesh.cp
            elif fault.kind is FaultKind.UNEQUAL_LENGTHS:
                share *= float(self._drawn(fault, step)[self._topology.coordinates(self._rank)["dp"], micro_batch])
        return share

    def _crowded(self, fault: Fault) -> float:
        """Return `factor` for one participant of each expert group, and the remainder for the others."""
        members = self._topology.by_rank[self._rank]["ep"].ranks
        crowded = self._topology.by_rank[fault.rank]["ep"].ranks.index(fault.rank)
        if members.index(self._rank) == crowded:
            return fault.factor
        return max(0.0, (len(members) - fault.factor) / (len(members) - 1))

    def _drawn(self, fault: Fault, step: int) -> Floats:
        """Draw the lengths of a step's micro-batches on all replicas, with mean 1 and spread `factor`."""
        if step not in self._lengths:
            draw = np.random.default_rng([self._run.seed, 11, step])
            wide = draw.standard_normal((self._run.mesh.dp, self._run.work.micro_batches))
            lengths = np.maximum(1 + fault.factor * wide, _SHORTEST)
            self._lengths[step] = lengths / lengths.mean()
        return self._lengths[step]
