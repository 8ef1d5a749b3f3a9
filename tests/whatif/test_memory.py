"""Memory by formula, compared with published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import run, step

from usp_prof.contract import ModelEntry
from usp_prof.model.selection import Assumptions
from usp_prof.whatif.layout import Layout, layout_of, memory_of

LLAMA_8B = ModelEntry(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=14336, vocab=128256, sequence=8192
)
PLAIN = Layout(dtype="bf16", zero=0, recompute="none", micro_batches=8, micro_batch_tokens=8192, model=LLAMA_8B)


def test_assumptions_suffice_without_a_manifest() -> None:
    tables = run({0: {"ranks": [{"device": "", "world_size": 1, "host": "a"}], "steps": [step(0, 0, 10)]}})
    tables = tables.assuming(Assumptions(model=LLAMA_8B, device="H100-SXM", tokens_per_step=8192))
    layout = layout_of(tables)
    assert (layout.model, layout.device, layout.tokens_per_step) == (LLAMA_8B, "H100-SXM", 8192)


def test_mixed_precision_needs_sixteen_bytes_per_parameter() -> None:
    memory = memory_of(PLAIN)
    assert memory is not None
    states = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
    assert states == pytest.approx(16 * 8.03e9, rel=0.005)
    assert memory.total_bytes == states + memory.activation_bytes + memory.logit_bytes


def test_activations_of_a_layer_follow_fujii() -> None:
    memory = memory_of(PLAIN)
    assert memory is not None
    layer = 8192 * 4096 * (12 + 4 * 8 / 32 + 8 * 14336 / 4096)
    assert memory.activation_bytes == pytest.approx(32 * layer)


@pytest.mark.parametrize(("stage", "factor"), [(1, (1, 1, 1 / 8)), (2, (1, 1 / 8, 1 / 8)), (3, (1 / 8, 1 / 8, 1 / 8))])
def test_zero_shards_the_state_of_its_stage(stage: int, factor: tuple[float, float, float]) -> None:
    unsharded, sharded = memory_of(replace(PLAIN, dp=8)), memory_of(replace(PLAIN, dp=8, zero=stage))
    assert unsharded is not None
    assert sharded is not None
    assert sharded.gathered_bytes == (2 * 2 * (2 * 4096**2 * 1.25 + 3 * 4096 * 14336 + 2 * 4096) if stage == 3 else 0)
    ratios = (sharded.parameter_bytes / unsharded.parameter_bytes, sharded.gradient_bytes / unsharded.gradient_bytes)
    assert (*ratios, sharded.optimizer_bytes / unsharded.optimizer_bytes) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("schedule", "chunks", "ratio"),
    [("gpipe", 1, 8), ("1f1b", 1, 4), ("interleaved", 2, 4 * 1.375), ("dualpipev", 2, 4.5)],
)
def test_a_stage_stores_the_micro_batches_in_flight(schedule: str, chunks: int, ratio: float) -> None:
    without_pipeline = memory_of(PLAIN)
    pipelined = memory_of(replace(PLAIN, pp=4, schedule=schedule, chunks=chunks))
    assert without_pipeline is not None
    assert pipelined is not None
    assert pipelined.activation_bytes == pytest.approx(without_pipeline.activation_bytes / 4 * ratio)


def test_fp32_training_and_sharded_states_are_counted() -> None:
    narrow, wide = memory_of(replace(PLAIN, tp=2)), memory_of(replace(PLAIN, tp=2, dtype="fp32"))
    assert narrow is not None
    assert wide is not None
    assert wide.parameter_bytes == 2 * narrow.parameter_bytes
    assert wide.optimizer_bytes * 12 == narrow.optimizer_bytes * 8
    assert wide.activation_bytes == 2 * narrow.activation_bytes


def test_experts_are_divided_by_their_own_axis() -> None:
    model = replace(LLAMA_8B, experts=8, experts_per_token=2, expert_ffn_hidden=14336)
    without_ep, with_ep = (memory_of(replace(PLAIN, model=model, dp=4, ep=ep)) for ep in (1, 4))
    assert without_ep is not None
    assert with_ep is not None
    assert 3 < without_ep.parameter_bytes / with_ep.parameter_bytes < 4


def test_unknown_memory_is_not_shown() -> None:
    assert memory_of(replace(PLAIN, model=None)) is None
    assert memory_of(replace(PLAIN, micro_batch_tokens=0)) is None
    assert memory_of(replace(PLAIN, model=ModelEntry())) is None
