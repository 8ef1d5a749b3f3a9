"""Variants of a config.json under every layout: equal loss and gradient norm, in float64."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from trainer_fleet import launch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(900)]

BOUND = 1e-9
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "head_dim": 12,
}
FILES = {
    # Tied embeddings, biases, wide heads, normalized queries and keys, GELU, stretched positions.
    "dense": {
        **SIZES,
        "model_type": "qwen3",
        "hidden_act": "gelu",
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    # Layer norm, learned positions, biases everywhere, no gate, tied embeddings.
    "gpt2": {"model_type": "gpt2", "n_layer": 4, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 32},
    # A first dense layer, routed experts chosen by sigmoids, shared experts.
    "mixture": {
        **SIZES,
        "model_type": "dots1",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.0,
    },
    # Shared experts that each token takes a share of.
    "gated": {
        **SIZES,
        "model_type": "qwen2_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}
TWO = (
    "dense --pp 2 --offload optimizer",
    "dense --pp 2 --schedule zbv",
    "dense --tp 2",
    "dense --tp 2 --no-sequence-parallel",
    "gpt2 --tp 2 --no-sequence-parallel",
    "dense --dp 2 --zero 3",
    "gpt2 --tp 2 --tp-async",
    "gpt2 --cp 2 --zero 2",
    "mixture --tp 2 --ep 2",
    "gated --tp 2",
)
FOUR = (
    "dense --pp 4 --schedule 1f1b",
    "dense --pp 2 --tp 2 --schedule zbv",
    "gpt2 --pp 2 --cp 2",
    "mixture --pp 2 --dp 2 --ep 2 --zero 1",
)
MORE_FOUR = (
    "dense --cp 2 --tp 2",
    "dense --pp 2 --dp 2 --schedule interleaved --zero 3",
    "dense --pp 2 --dp 2 --schedule dualpipev --zero 3",
    "gpt2 --pp 2 --tp 2 --schedule interleaved-zb",
    "gpt2 --dp 4 --dp-replicate 2 --zero 1",
    "mixture --dp 2 --cp 2 --ep 4 --zero 3",
    "mixture --pp 2 --tp 2 --ep 2 --schedule zbv --tp-async",
    "gated --pp 2 --dp 2 --ep 2 --zero 2",
)
SPLIT = 3
"""Updates before a run stops, to go on under another layout."""
STOPS, GOES_ON = "dense --pp 2 --schedule zbv", "dense --tp 2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name, fields in FILES.items():
        (made / f"{name}.json").write_text(json.dumps(fields))
    return made


def typed(folder: Path, case: str) -> str:
    name, _, options = case.partition(" ")
    return f"--model {folder / name}.json {options}"


@cache
def curves(folder: Path, processes: int, cases: tuple[str, ...]) -> dict:
    return launch(processes, [typed(folder, case) for case in cases], 800)


def check(folder: Path, processes: int, cases: tuple[str, ...], case: str, first: int = 0) -> None:
    alone = curves(folder, 1, tuple(FILES))[typed(folder, case.partition(" ")[0])]
    curve = curves(folder, processes, cases)[typed(folder, case)]
    assert "error" not in alone, alone["error"]
    assert "error" not in curve, curve["error"]
    assert curve["loss"] == pytest.approx(alone["loss"][first:], rel=0, abs=BOUND)
    assert curve["norm"] == pytest.approx(alone["norm"][first:], rel=0, abs=BOUND)


@pytest.mark.parametrize("case", TWO)
def test_parity_on_two_processes(folder: Path, case: str) -> None:
    check(folder, 2, TWO, case)


@pytest.mark.parametrize("case", FOUR)
def test_parity_on_four_processes(folder: Path, case: str) -> None:
    check(folder, 4, FOUR, case)


@pytest.mark.full
@pytest.mark.parametrize("case", MORE_FOUR)
def test_parity_on_four_processes_more_layouts(folder: Path, case: str) -> None:
    check(folder, 4, MORE_FOUR, case)


def test_a_tied_embedding_is_stored_once_and_read_by_both_stages(folder: Path) -> None:
    place = f"--checkpoint {folder / 'states'}"
    cases = (f"{STOPS} {place} --steps {SPLIT}", f"{GOES_ON} {place} --resume", f"{STOPS} {place} --resume")
    for case in cases[1:]:
        check(folder, 2, cases, case, SPLIT)
