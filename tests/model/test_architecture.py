from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hand_counts import MODELS, HandCount

from usp_prof import architecture, conventions
from usp_prof.architecture.families import FAMILIES
from usp_prof.model import flops
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = MODELS["llama-3-8b"].config
# Model types whose published form is not a class for text in transformers.
_NO_TEXT_CLASS = {
    "glm4v_moe_text", "kimi_k2", "minimax_m1", "minimax_text_01", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl",
    "qwen2_vl_text", "qwen3_vl_moe_text", "qwen3_vl_text",
}  # fmt: skip
# Arguments required to build a class at all, or to have more than one kind of layer.
_TOLD: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [3, 9]},
    "cohere": {"use_qk_norm": True},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "glm4_moe": {"head_dim": 128, "use_qk_norm": True},
    "granitemoehybrid": {"layer_types": (["mamba"] * 3 + ["attention"]) * 8},
    "granitemoeshared": {"shared_intermediate_size": 512},
    "hunyuan_v1_dense": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "nemotron": {"num_key_value_heads": 8},
}


def attention(model: HandCount, sequence: int, *, causal: bool = False) -> float:
    """Add up 6 x heads x (query/key + value size) x positions, layer by layer."""
    total = 0.0
    for layers, heads, qk_size, v_size, window in model.attention:
        cut = 0 < window < sequence
        positions = window if cut else sequence / 2 if causal else sequence
        total += layers * 6 * heads * (qk_size + v_size) * positions
    return total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", [0, 1], ids=["short", "long"])
def test_the_cost_of_a_model_equals_a_hand_count(name: str, place: int) -> None:
    model = MODELS[name]
    sequence = model.lengths[place]
    entry = flops.describe(model.config)
    entry.sequence = sequence
    # The head of multi-token prediction is used twice but stored once, so no number of parameters is given here.
    met = model.multiplying + model.beside
    state = 6 * model.state_products
    assert flops.per_token(entry, "palm") == 6 * met + attention(model, sequence) + state
    assert flops.per_token(entry, "matmul") == 6 * model.multiplying + attention(model, sequence) + state
    assert flops.per_token(entry, "causal") == 6 * model.multiplying + attention(model, sequence, causal=True) + state
    assert sum(flops.parts(entry).values()) == pytest.approx(flops.per_token(entry, "matmul"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.kin != "none"])
def test_the_hand_count_has_every_parameter_of_the_class(name: str) -> None:
    model = MODELS[name]
    total = model.multiplying + model.beside + model.idle
    assert conventions.total_parameters(flops.describe(model.config)) == total
    assert parameters_of(text_class(model)) == total


DENSE = ("llama-3-8b", "mistral-7b-v0.1", "phi-3-mini-4k", "phi-4", "gemma-2-2b", "gemma-3-4b", "qwen2.5-7b",
         "qwen3-8b", "olmo-2-7b", "gpt-2", "command-r", "deepseek-v3")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_a_forward_pass_on_the_meta_device_multiplies_what_was_counted(name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - only where torch is there

    model, sequence = MODELS[name], 512
    few = {"num_hidden_layers": 3} if name == "deepseek-v3" else {}  # its first three layers are dense
    built = text_class(model, few)
    entry = flops.describe({**model.config, **few})
    entry.sequence = sequence
    with warnings.catch_warnings(), FlopCounterMode(display=False) as counter, torch.device("meta"), torch.no_grad():
        warnings.simplefilter("ignore")
        tokens = torch.zeros(1, sequence, dtype=torch.long)
        built(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    # No window of these cuts 512 positions, and the counter sees no mask: this is `matmul`, forward alone.
    assert counter.get_total_flops() == pytest.approx(sequence * (flops.per_token(entry, "matmul") or 0) / 3, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - _NO_TEXT_CLASS))
def test_every_listed_type_has_the_parameters_of_its_class(model_type: str) -> None:
    model = HandCount({"model_type": model_type}, 0, 0, (), more=_TOLD.get(model_type, {}))
    built = text_class(model)
    assert conventions.total_parameters(architecture.read(built.config.to_dict())) == parameters_of(built)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_missing_field_is_the_class_default_or_refused(model_type: str) -> None:
    config = class_config({"model_type": model_type, **_TOLD.get(model_type, {})})
    if config is None:
        pytest.skip("transformers has no such class")
    values = config.to_dict()
    expected = cost(values)
    for name in set(values) - set(_TOLD.get(model_type, {})) - {"model_type"}:
        try:
            counted = cost({field: value for field, value in values.items() if field != name})
        except architecture.ArchitectureError:
            continue
        assert counted == expected, name


def cost(config: dict[str, Any]) -> tuple[int | None, dict[str, float]]:
    entry = architecture.read(config)
    entry.sequence = 16384
    return conventions.total_parameters(entry), conventions.flop_per_token(entry)


def class_config(values: dict[str, Any]) -> Any:
    """Make the configuration of the class, or its text part if it has one."""
    transformers = pytest.importorskip("transformers")
    text = values.get("text_config", values)
    model_type = text["model_type"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model_type not in transformers.CONFIG_MAPPING:
            return None
        config = transformers.CONFIG_MAPPING[model_type](**{k: v for k, v in text.items() if k != "model_type"})
    return getattr(config, "text_config", config)


def text_class(model: HandCount, more: dict[str, Any] | None = None) -> Any:
    """Build the class on the meta device, which allocates nothing."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    values = {**model.config.get("text_config", model.config), **model.more, **(more or {})}
    values = {name: value for name, value in values.items() if value is not None or name not in model.more}
    values.pop("vision_config", None)
    if model.kin:
        values["model_type"] = model.kin
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_config(class_config(values), attn_implementation="eager")


def parameters_of(built: Any) -> int:
    return sum(parameter.numel() for parameter in built.parameters())


def test_the_vision_part_is_excluded_and_reported() -> None:
    for name in ("qwen2.5-vl-7b", "gemma-3-4b", "llama-4-scout"):
        assert any("vision_config left out" in note for note in flops.describe(MODELS[name].config).notes)


def test_multi_token_prediction_is_reported_and_counted_if_trained() -> None:
    plain, trained = (flops.describe(MODELS[name].config) for name in MODELS if name.startswith("deepseek-v3"))
    assert any("1 multi-token-prediction layers are left out" in note for note in plain.notes)
    assert any("are counted" in note for note in trained.notes)
    # The published size: 671 B, and 14 B of the module, without the embedding and the head that it shares (1.85 B).
    assert conventions.total_parameters(plain) == pytest.approx(671.03e9, rel=1e-4)
    assert (conventions.total_parameters(trained) or 0) - (conventions.total_parameters(plain) or 0) == pytest.approx(
        11.6e9, rel=0.01
    )


def test_an_unknown_type_is_counted_by_its_fields_and_reported() -> None:
    entry = flops.describe({**LLAMA, "model_type": "llama_of_tomorrow", "hidden_act": "silu"})
    entry.sequence = 4096
    model = flops.describe(LLAMA)
    model.sequence = 4096
    assert flops.per_token(entry) == flops.per_token(model)
    assert any("'llama_of_tomorrow' is not known" in note for note in entry.notes)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"layer_types": ["retention"] * 32}, "retention"),
        ({"layer_types": ["full_attention"] * 3}, "3 of 32"),
        ({"model_type": "new", "memory_slots": 4096}, "memory_slots"),
        ({"model_type": "new", "hidden_act": "silu", "flavour": "sweet"}, "flavour"),
        ({"model_type": "diffllama", "hidden_act": "silu", "lambda_std_dev": 0.1}, "lambda_std_dev"),
        (
            {"model_type": "mimo_v2_flash", "hidden_act": "silu", "attention_value_scale": 0.707},
            "attention_value_scale",
        ),
        ({"model_type": "mamba2", "num_attention_heads": None, "state_size": 128, "expand": 2}, "state_size"),
        ({"model_type": "new", "block_window": 64}, "block_window"),
        ({"model_type": "new", "local_attention": 128}, "local_attention"),
        ({"model_type": "new", "kv_channels": 64}, "kv_channels"),
        ({"model_type": "new", "hidden_act": "gelu"}, "gelu.*two matrices, or three"),
        ({"model_type": "new"}, "None.*two matrices, or three"),
        ({"model_type": "minimax"}, "attention"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, "num_experts_per_tok"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"hidden_size": "large"}, "hidden_size"),
        ({"num_attention_heads": None}, "num_attention_heads"),
    ],
)
def test_unknown_fields_that_change_the_count_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=field) as raised:
        flops.describe({**LLAMA, **fields})
    assert "flop_per_token" in raised.value.hint


def test_a_field_that_a_known_type_does_not_have_is_reported() -> None:
    entry = flops.describe({**LLAMA, "linear_key_head_dim": 128})
    assert any("linear_key_head_dim" in note for note in entry.notes)
    assert flops.describe(LLAMA).notes == []


def test_a_disabled_window_is_ignored() -> None:
    for fields in ({"use_sliding_window": False, "sliding_window": 64}, {"sliding_window": None}):
        entry = flops.describe({**MODELS["mistral-7b-v0.1"].config, **fields})
        assert {block.window for kind in entry.layer_kinds for block in kind.blocks} == {0}


def test_layers_list_their_parts() -> None:
    entry = flops.describe(MODELS["qwen3-next-80b-a3b"].config)
    assert len(entry.layer_kinds) == 2
    assert entry.layer_order == [0, 0, 0, 1] * 12
    mixer, mixture = entry.layer_kinds[1].blocks
    assert (mixer.kind, mixer.form, mixer.heads, mixer.kv_heads, mixer.qk_size) == ("attention", "full", 16, 2, 256)
    assert (mixture.experts, mixture.experts_per_token, mixture.expert_ffn_hidden) == (512, 10, 512)
    assert mixture.shared_ffn_hidden == 512
    assert entry.layer_kinds[0].blocks[0].form == "gated_delta_net"


@pytest.mark.parametrize("name", ["deepseek-v3", "granite-4.0-h-small", "nemotron-h-8b", "gemma-3-4b"])
def test_mean_layers_contain_all_but_vocabulary_and_last_norm(name: str) -> None:
    entry = flops.describe(MODELS[name].config)
    layer = conventions.mean_layer(entry)
    vocabulary = entry.vocab * entry.hidden
    active_parameters = (
        entry.layers * (layer.shared + layer.routed) + vocabulary * (2 - entry.tied_embeddings) + entry.hidden
    )
    assert active_parameters == pytest.approx(conventions.total_parameters(entry), rel=1e-12)
    assert entry.layers * layer.multiplying + vocabulary == pytest.approx(MODELS[name].multiplying, rel=1e-12)
    # Routed experts: all of them, of which a token does not use `idle`.
    if entry.experts:
        share = 1 - entry.experts_per_token / entry.experts
        assert entry.layers * layer.routed * share == pytest.approx(MODELS[name].idle, rel=1e-12)


def test_a_declared_cost_takes_precedence() -> None:
    entry = flops.describe({**LLAMA, "sequence": 8192, "flop_per_token": {"palm": 5.0}})
    assert flops.per_token(entry, "palm") == 5.0


def test_an_uncountable_model_may_declare_its_cost(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "layer_types": ["retention"] * 32, "flop_per_token": {"palm": 5e10}}))
    entry = flops.load(path, sequence=4096)
    assert flops.per_token(entry, "palm") == 5e10
    assert flops.per_token(entry, "matmul") is None
    assert any("retention" in note for note in entry.notes)


def test_lfm2_has_its_own_field_for_its_width() -> None:
    config = {
        "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 65536, "conv_L_cache": 3,
        "num_attention_heads": 32, "num_key_value_heads": 8, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_bias": False,
        "block_auto_adjust_ff_dim": True,
    }  # fmt: skip
    entry = flops.describe(config)
    assert entry.ffn_hidden == 8192
    # The published size: 1.17 B.
    assert conventions.total_parameters(entry) == pytest.approx(1.17e9, rel=0.005)
