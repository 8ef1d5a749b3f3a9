from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof import conventions
from usp_prof.contract import ModelEntry

LLAMA_3_8B = ModelEntry(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=14336,
    vocab=128256,
    sequence=8192,
)
MIXTRAL_8X7B = ModelEntry(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=32000,
    sequence=4096,
    experts=8,
    experts_per_token=2,
    expert_ffn_hidden=14336,
)


def test_llama_3_8b_counts_its_published_parameters() -> None:
    norms = 65 * 4096
    assert conventions.total_parameters(LLAMA_3_8B) == 8_030_261_248 - norms


def test_the_conventions_differ_by_18_6_percent_on_llama_3_8b() -> None:
    cost = conventions.flop_per_token(replace(LLAMA_3_8B, parameters=8_030_261_248))
    assert cost["palm"] / cost["causal"] == pytest.approx(1.186, abs=5e-4)
    assert cost["matmul"] - cost["causal"] == 6 * 32 * 4096 * 8192


def test_mixtral_counts_two_of_eight_experts() -> None:
    assert conventions.total_parameters(MIXTRAL_8X7B) == 46_702_792_704 - 65 * 4096
    assert conventions.active_parameters(MIXTRAL_8X7B) == 12_879_925_248 - 65 * 4096


def test_a_tied_matrix_is_counted_once_and_multiplies_as_the_head() -> None:
    tied = replace(LLAMA_3_8B, tied_embeddings=True)
    matrix = 128256 * 4096
    assert conventions.total_parameters(LLAMA_3_8B) == (conventions.total_parameters(tied) or 0) + matrix
    assert conventions.multiplying_parameters(tied) == conventions.multiplying_parameters(LLAMA_3_8B)


def test_declared_counts_serve_where_the_shape_is_unknown() -> None:
    entry = ModelEntry(
        layers=4, hidden=64, heads=4, head_dim=16, sequence=128, parameters=1000, embedding_parameters=100
    )
    attention = 12 * 4 * 64 * 128
    assert conventions.flop_per_token(entry) == {
        "palm": 6000 + attention,
        "matmul": 5400 + attention,
        "causal": 5400 + attention / 2,
    }
    tied = conventions.flop_per_token(replace(entry, tied_embeddings=True))
    assert tied["matmul"] == tied["palm"]


def test_unknown_costs_are_absent() -> None:
    assert conventions.flop_per_token(ModelEntry()) == {}
    assert conventions.flop_per_token(replace(LLAMA_3_8B, sequence=0)) == {}
    unknown_ffn = replace(LLAMA_3_8B, ffn_hidden=0, vocab=0)
    assert conventions.flop_per_token(unknown_ffn) == {}
    assert conventions.multiplying_parameters(replace(unknown_ffn, parameters=10)) is None
    assert conventions.active_parameters(replace(MIXTRAL_8X7B, expert_ffn_hidden=0)) is None
    assert conventions.active_parameters(replace(MIXTRAL_8X7B, experts_per_token=0)) is None


@pytest.mark.parametrize("entry", [LLAMA_3_8B, MIXTRAL_8X7B], ids=["dense", "mixture"])
def test_mean_layers_add_up_to_the_model(entry: ModelEntry) -> None:
    layer = conventions.mean_layer(entry)
    vocabulary = 2 * conventions.vocabulary_parameters(entry)
    norms = 32 * 2 * 4096
    assert 32 * (layer.shared + layer.routed) + vocabulary == (conventions.total_parameters(entry) or 0) + norms
    assert 32 * layer.multiplying + vocabulary / 2 == conventions.multiplying_parameters(entry)


@pytest.mark.parametrize(
    ("window", "sequence", "matmul", "causal"),
    [(0, 8192, 8192, 4096), (4096, 8192, 4096, 4096), (4096, 4096, 4096, 2048), (4096, 2048, 2048, 1024)],
    ids=["full", "cut", "as long as the sequence", "longer"],
)
def test_attended_positions_follow_from_window_and_mask(
    window: int, sequence: int, matmul: float, causal: float
) -> None:
    assert conventions.attended_positions(window, sequence) == matmul
    assert conventions.attended_positions(window, sequence, "causal") == causal


def test_complete_keeps_declared_values() -> None:
    entry = conventions.complete(replace(LLAMA_3_8B, parameters=7, flop_per_token={"palm": 1.0}))
    assert entry.parameters == 7
    assert entry.flop_per_token["palm"] == 1.0
    assert set(entry.flop_per_token) == set(conventions.CONVENTIONS)
    assert entry.embedding_parameters == 128256 * 4096


@given(
    layers=st.integers(1, 8),
    heads=st.integers(1, 8),
    experts=st.integers(0, 8),
    gated=st.booleans(),
)
def test_active_is_at_most_total_and_causal_at_most_matmul(layers: int, heads: int, experts: int, gated: bool) -> None:
    entry = ModelEntry(
        layers=layers,
        hidden=heads * 8,
        heads=heads,
        kv_heads=1,
        head_dim=8,
        ffn_hidden=32,
        vocab=64,
        sequence=16,
        experts=experts,
        experts_per_token=min(experts, 2),
        shared_experts=1 if experts else 0,
        moe_layers=min(layers, 1) if experts else 0,
        gated_ffn=gated,
    )
    total, active = conventions.total_parameters(entry), conventions.active_parameters(entry)
    assert total is not None
    assert active is not None
    assert active <= total
    cost = conventions.flop_per_token(entry)
    assert cost["causal"] < cost["matmul"] < cost["palm"]
