"""Named models: every entry is compared with a cited source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hand_counts import MODELS

from usp_prof.extras.planner.question import not_modelled
from usp_prof.model.errors import UsageError
from usp_prof.model.flops import describe
from usp_prof.model.known_models import FILE, model_named, model_names
from usp_prof.model.shape import shape_of

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.contract import ModelEntry

BY_HAND = {
    "Llama-3-8B": "llama-3-8b", "Llama-4-Scout": "llama-4-scout", "Llama-4-Maverick": "llama-4-maverick",
    "Mixtral-8x7B": "mixtral-8x7b", "Qwen2.5-7B": "qwen2.5-7b", "Qwen3-8B": "qwen3-8b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b", "DeepSeek-V3": "deepseek-v3", "Kimi-K2": "kimi-k2",
    "GPT-OSS-120B": "gpt-oss-120b",
}  # fmt: skip
"""Models whose configuration is counted by hand in `hand_counts.py`."""
DEFAULTS = {"Llama-2-7B": "llama", "Mixtral-8x7B": "mixtral", "GPT-OSS-120B": "gpt_oss", "DeepSeek-V3": "deepseek_v3"}
"""Models that are the defaults of a configuration class in transformers."""
TORCHTITAN = {
    "Llama-3.2-1B": (16, 2048, 32, 8, 128256), "Llama-3.2-3B": (28, 3072, 24, 8, 128256),
    "Llama-3-70B": (80, 8192, 64, 8, 128256), "Llama-3-405B": (126, 16384, 128, 8, 128256),
    "Qwen3-32B": (64, 5120, 64, 8, 151936), "Qwen3-235B-A22B": (94, 4096, 64, 4, 151936),
    "GPT-OSS-20B": (24, 2880, 64, 8, 201088),
}  # fmt: skip
"""Layers, hidden size, heads, key/value heads and vocabulary in the model registries of torchtitan 0.3.0."""
PUBLISHED = {
    "Llama-2-13B": 13.0, "Llama-2-70B": 69.0, "GPT-3-22B": 22.0, "GPT-3-175B": 175.0, "Nemotron-4-15B": 15.6,
    "Nemotron-4-340B": 341.0, "Mixtral-8x22B": 141.0, "Grok-1": 314.0, "Qwen2.5-32B": 32.8, "Qwen2.5-72B": 72.7,
}  # fmt: skip
"""Parameters in billions by the models' own papers and cards: a weaker check, of the sum alone."""
FIELDS = ("layers", "hidden", "heads", "kv_heads", "vocab", "experts", "experts_per_token", "tied_embeddings")


def billions(model: ModelEntry) -> float:
    shape = shape_of(model)
    matrices = 1 if shape.tied else 2
    return (
        float(
            shape.layers * (shape.shared_parameters + shape.routed_parameters)
            + matrices * shape.vocabulary * shape.hidden
        )
        / 1e9
    )


def test_every_model_has_its_source() -> None:
    assert set(model_names()) == {*BY_HAND, *DEFAULTS, *TORCHTITAN, *PUBLISHED}


@pytest.mark.parametrize("name", BY_HAND)
def test_models_have_their_hand_counted_parameters(name: str) -> None:
    count = MODELS[BY_HAND[name]]
    model, published = model_named(name, 4096), describe(count.config)
    assert [getattr(model, field) for field in FIELDS] == [getattr(published, field) for field in FIELDS]
    # The hand count includes everything except norms and biases, which are a few thousandths.
    assert billions(model) == pytest.approx((count.multiplying + count.beside + count.idle) / 1e9, rel=2e-3)


SIZES = {"layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 100}


def test_a_file_with_our_own_fields_needs_every_size(tmp_path: Path) -> None:
    """Without `ffn_hidden`, the model used to be planned as attention only, so the plan was for another model."""
    file = tmp_path / "model.json"
    for name in ("heads", "ffn_hidden", "vocab"):
        file.write_text(json.dumps({field: size for field, size in SIZES.items() if field != name}))
        with pytest.raises(UsageError, match=f"gives no {name}"):
            model_named(str(file))
    file.write_text(json.dumps(SIZES))
    assert model_named(str(file)).ffn_hidden == 128


def test_a_model_with_experts_only_needs_only_their_width(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    mixture = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 32}
    sizes = {field: size for field, size in SIZES.items() if field != "ffn_hidden"}
    file.write_text(json.dumps(sizes | mixture))
    assert model_named(str(file)).expert_ffn_hidden == 32
    file.write_text(json.dumps(sizes | mixture | {"moe_layers": 1}))
    with pytest.raises(UsageError, match="gives no ffn_hidden"):  # for the layer without experts
        model_named(str(file))


@pytest.mark.parametrize("name", DEFAULTS)
def test_models_equal_the_defaults_of_their_class(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    default = transformers.CONFIG_MAPPING[DEFAULTS[name]]().to_dict()
    entry = json.loads(FILE.read_text())[name]
    ours = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads", "vocab": "vocab_size", "ffn_hidden": "intermediate_size",
        "experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
        "expert_ffn_hidden": "intermediate_size",
    }  # fmt: skip
    for field, value in entry.items():
        theirs = ours.get(field, field)
        if default.get(theirs) is not None:
            assert value == default[theirs], field


@pytest.mark.parametrize("name", TORCHTITAN)
def test_models_equal_those_that_torchtitan_registers(name: str) -> None:
    model = model_named(name, 4096)
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.vocab) == TORCHTITAN[name]


COUNTED_BY_TRANSFORMERS = {
    "Llama-2-13B": "llama", "Llama-2-70B": "llama", "Nemotron-4-15B": "nemotron", "Nemotron-4-340B": "nemotron",
    "Mixtral-8x22B": "mixtral", "Qwen2.5-32B": "qwen2", "Qwen2.5-72B": "qwen2",
}  # fmt: skip
"""Models of which transformers has the class; GPT-3 has none (GPT-2 has other embeddings), nor has Grok-1."""


@pytest.mark.parametrize("name", COUNTED_BY_TRANSFORMERS)
def test_models_that_transformers_builds_have_as_many_parameters(name: str) -> None:
    """Models with one and two layers on the meta device: their difference is one layer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = model_named(name, 4096)
    sizes = {
        "hidden_size": model.hidden, "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim, "intermediate_size": model.ffn_hidden, "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied_embeddings,
    }  # fmt: skip
    if model.experts:
        sizes |= {"num_local_experts": model.experts, "num_experts_per_tok": model.experts_per_token}
    counts = []
    for layers in (1, 2):
        config = transformers.CONFIG_MAPPING[COUNTED_BY_TRANSFORMERS[name]](num_hidden_layers=layers, **sizes)
        with torch.device("meta"):
            built = transformers.AutoModelForCausalLM.from_config(config)
        counts.append(sum(parameter.numel() for parameter in built.parameters()))
    layer = counts[1] - counts[0]
    # Our count may omit only norms and the biases of Qwen's queries, keys and values.
    assert billions(model) == pytest.approx((counts[0] + (model.layers - 1) * layer) / 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "omissions"),
    [
        ("llama-3-8b", []),
        ("deepseek-v3", ["its layers differ"]),
        ("qwen3-next-80b-a3b", ["its layers differ", "gated_delta_net: states"]),
        ("deepseek-v3 with multi-token prediction", ["its layers differ", "multi-token prediction counts in MFU"]),
    ],
)
def test_parts_of_a_model_that_a_plan_ignores_are_named(name: str, omissions: list[str]) -> None:
    count = MODELS[name]
    model = describe({**count.config, **({"mtp_layers": 1} if "multi-token" in name else {})})
    sentences = not_modelled(model)
    assert all(any(sentence.startswith(words) for sentence in sentences) for words in omissions)
    assert bool(sentences) == bool(omissions)


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_their_published_size(name: str) -> None:
    assert billions(model_named(name, 4096)) == pytest.approx(PUBLISHED[name], rel=0.01)
