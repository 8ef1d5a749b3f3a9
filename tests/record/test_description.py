from __future__ import annotations

import json
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import pytest

from usp_prof.contract import Manifest, ModelEntry
from usp_prof.conventions import attention_flop_per_token, flop_per_token
from usp_prof.record.statement import _ALIASES, describe_model


@dataclass
class Torchtitan:
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    hidden_dim: int = 128
    vocab_size: int = 100


def test_every_field_of_the_contract_has_alternative_names() -> None:
    # These follow from reading a configuration layer by layer, not from a single field.
    layer_by_layer = {"layer_kinds", "layer_order", "mtp_kind", "mtp_layers", "other_parameters", "notes"}
    assert {*_ALIASES, *layer_by_layer} == {field.name for field in fields(ModelEntry)}


def test_a_dataclass_a_dict_and_plain_attributes_are_equivalent() -> None:
    from_dataclass = describe_model(Torchtitan(), sequence=16)
    megatron = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "ffn_hidden_size": 128,
        "vocab_size": 100,
    }
    assert from_dataclass is not None
    assert from_dataclass.head_dim == 16
    assert from_dataclass.kv_heads == 2
    assert set(from_dataclass.flop_per_token) == {"palm", "matmul", "causal"}
    assert describe_model(megatron, sequence=16) == from_dataclass
    assert describe_model(SimpleNamespace(**megatron), sequence=16) == from_dataclass
    assert describe_model(SimpleNamespace(config=Torchtitan()), sequence=16) == from_dataclass


def test_a_negative_size_or_text_in_place_of_one_is_dropped_with_a_note() -> None:
    described = describe_model(
        {"layers": 2, "hidden": 8, "heads": "four", "vocab": -1, "kv_heads": float("nan"), "sequence": -5}
    )
    assert described is not None
    assert (described.layers, described.hidden, described.vocab, described.sequence) == (2, 8, 0, 0)
    assert described.notes == [
        f"{size} of the model is left out: it is not a size"
        for size in ("heads = 'four'", "kv_heads = nan", "vocab = -1", "sequence = -5")
    ]
    assert not described.flop_per_token


def test_an_entry_is_completed_and_its_sequence_can_be_overridden() -> None:
    entry = ModelEntry(layers=1, hidden=8, heads=2, head_dim=4, ffn_hidden=8, vocab=8, sequence=4)
    described = describe_model(entry, sequence=8)
    assert described is not None
    assert described.sequence == 8
    assert entry.sequence == 4
    assert described.flop_per_token["palm"] > 0


def test_hugging_face_configurations_are_described() -> None:
    transformers = pytest.importorskip("transformers")
    llama = describe_model(transformers.LlamaConfig(num_hidden_layers=3, head_dim=16), sequence=32)
    assert llama is not None
    assert (llama.name, llama.layers, llama.head_dim, llama.gated_ffn) == ("llama", 3, 16, True)
    gpt2 = describe_model(transformers.GPT2Config(n_inner=3072))
    assert gpt2 is not None
    assert (gpt2.gated_ffn, gpt2.ffn_hidden, gpt2.flop_per_token) == (False, 3072, {})
    mixtral = describe_model(transformers.MixtralConfig(), sequence=4096)
    assert mixtral is not None
    assert (mixtral.experts, mixtral.experts_per_token) == (8, 2)
    assert mixtral.parameters == pytest.approx(46.7e9, rel=1e-3)
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=2e-3)


def test_the_manifest_of_a_windowed_model_has_its_window() -> None:
    transformers = pytest.importorskip("transformers")
    recorded = describe_model(transformers.MistralConfig(sliding_window=1024), sequence=8192)
    assert recorded is not None
    read = Manifest.from_dict(json.loads(json.dumps(Manifest(model=recorded).to_dict()))).model
    assert read == recorded
    assert read.layer_kinds[0].blocks[0].window == 1024
    # 32 layers of 32 heads of 128: the positions of the window, not of the sequence
    assert attention_flop_per_token(read) == 32 * 6 * 32 * (128 + 128) * 1024


def test_hugging_face_models_are_counted_without_multi_token_prediction() -> None:
    transformers = pytest.importorskip("transformers")
    recorded = describe_model(transformers.DeepseekV3Config(), sequence=4096)
    assert recorded is not None
    assert recorded.parameters == 671_026_404_352
    assert any("multi-token-prediction layers are left out" in note for note in recorded.notes)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "unheard", "num_hidden_layers": 2, "hidden_size": 64, "ssm_size": 4}, "ssm_size"),
        ({"num_layers": 2, "hidden_size": 64, "multi_latent_attention": True}, "multi_latent_attention"),
        ({"dim": 64, "n_layers": 2, "window_size": 128}, "window_size"),
    ],
)
def test_a_model_that_cannot_be_counted_is_recorded_with_the_reason(config: dict[str, Any], field: str) -> None:
    recorded = describe_model({"num_attention_heads": 4, "vocab_size": 10, "intermediate_size": 8, **config}, 16)
    assert recorded is not None
    assert recorded.flop_per_token == {}
    assert flop_per_token(recorded) == {}
    assert field in recorded.notes[0]


def test_without_a_model_there_is_no_description() -> None:
    assert describe_model(None) is None
