"""Models of a config.json, compared with transformers' own classes."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.configuration.load import load_shape, unread
from trainer.configuration.options import OptionError
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 32}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, wide heads": ("llama", {"head_dim": 16}),
    "llama, tied, biases, gelu": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ),
    "llama, linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "llama 3.1 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, yarn, own ramp": (
        "llama",
        {"rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.3}},
    ),
    "mistral": ("mistral", {"sliding_window": 32}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "gpt2": ("gpt2", GPT2),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "qwen2_moe",
        {"num_experts": 4, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0], **ROUTED},
    ),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 4, "norm_topk_prob": True, "head_dim": 12, **ROUTED}),
    "dots1": (
        "dots1",
        {
            "n_routed_experts": 4,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            **ROUTED,
        },
    ),
}

NAMES = (
    (r"^(model|transformer)\.", ""),
    (r"^embed_tokens|^wte", "embedding"),
    (r"^wpe", "positions"),
    (r"^lm_head", "head"),
    (r"^ln_f", "norm"),
    (r"^h\.", "layers."),
    (r"input_layernorm|ln_1", "attention_norm"),
    (r"post_attention_layernorm|ln_2", "ffn_norm"),
    (r"(self_)?attn\.([qkvo])_proj", r"attention.\2"),
    (r"(self_)?attn\.(\w_norm)", r"attention.\2"),
    (r"attn\.c_proj|attention\.o\b", "attention.out"),
    (r"attn\.c_attn", "attention.qkv"),
    (r"mlp\.c_fc", "ffn.up"),
    (r"mlp\.c_proj", "ffn.down"),
    (r"mlp\.shared_expert_gate\.weight", "shared.share"),
    (r"mlp\.shared_experts?", "shared"),
    (r"mlp\.gate\.weight", "ffn.router"),
    (r"mlp\.gate\.e_score_correction_bias", "ffn.bias"),
    (r"mlp\.experts", "ffn.weights"),
    (r"mlp\.", "ffn."),
    (r"(gate|up|down)_proj", r"\1"),
)
"""What transformers calls a weight, and what we do."""


def translated(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours = {}
    for key, value in theirs.items():
        name = key
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        if name.endswith("weights.gate_up"):
            gate, up = value.mT.chunk(2, -1)
            ours |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        elif "attention.qkv" in name:
            parts = value.chunk(3, -1)
            for which, part in zip("qkv", parts, strict=True):
                ours[name.replace("qkv", which)] = part.mT if part.ndim == 2 else part
        elif "weights." in name or re.search(r"\.c_\w+\.weight", key):  # [.., inputs, outputs]
            ours[name] = value.mT
        else:
            ours[name] = value
    return ours


def decoder_of(file: Path, options: str = "") -> Any:
    config = resolve(parse(["--model", str(file), "--dtype", "fp64", "--device", "cpu", *options.split()]), 1)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config) - {"log"})
    return build(config, mesh, torch.device("cpu"), Faults(config, 0)).chunks[0], config.shape


def check_logits(folder: Path, config: Any) -> None:
    """Compare the trainer's model of a folder's file with the class of its configuration."""
    torch.manual_seed(0)
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    theirs = transformers.AutoModelForCausalLM.from_config(config, **plain).double().eval()
    with torch.no_grad():
        for tensor in [*theirs.parameters(), *(b for name, b in theirs.named_buffers() if "correction" in name)]:
            tensor.add_(torch.randn_like(tensor) * 0.3)  # norms and biases begin at ones and zeros
    ours, shape = decoder_of(folder / "config.json", "--sequence 32")
    state = {
        name: value for name, value in theirs.state_dict().items() if not (shape.tied and name.startswith("lm_head"))
    }
    # Strict: no weight is missing or left over. Families without a routing bias have a bias of zero.
    choice = {name: buffer for name, buffer in ours.named_buffers() if name.endswith("ffn.bias")}
    ours.load_state_dict(choice | translated(state))
    assert shape.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    tokens = torch.randint(64, (3, 32))
    with torch.no_grad():
        expected, logits = theirs(tokens).logits, ours(tokens).transpose(0, 1)
    # transformers rotates and routes in fp32, whatever the model's type.
    assert (logits - expected).abs().max() < 2e-6 * expected.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(tmp_path: Path, case: str) -> None:
    family, fields = CASES[case]
    config = transformers.AutoConfig.for_model(family, **(fields if family == "gpt2" else SMALL | fields))
    config.to_json_file(tmp_path / "config.json", use_diff=False)
    check_logits(tmp_path, config)


LEAST = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 32,
    "intermediate_size": 32,
    "vocab_size": 64,
}
"""What a file must say."""
NOT_SILENT = {
    "gpt2": {"n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 64},
    "qwen2_moe": LEAST | {"hidden_size": 32, "num_attention_heads": 16},
    "qwen3_moe": LEAST | {"hidden_size": 8, "num_attention_heads": 4},
    "dots1": LEAST | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
}
"""Where it is more than that, is called otherwise, or would make many wide experts."""


@pytest.mark.parametrize("family", sorted({family for family, _ in CASES.values()}))
def test_missing_fields_have_the_defaults_of_their_class(tmp_path: Path, family: str) -> None:
    values = {"model_type": family, **NOT_SILENT.get(family, LEAST)}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    check_logits(tmp_path, config)
    shape = load_shape(str(tmp_path / "config.json"))
    assert shape.sequence == min(config.max_position_embeddings, 4096)
    assert shape.window == (4096 if family == "mistral" else 0)


def test_key_heads_default_to_the_number_of_heads(tmp_path: Path) -> None:
    values = {"model_type": "mistral", **LEAST, "num_key_value_heads": None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert load_shape(str(tmp_path / "config.json")).kv_heads == 32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, r"asks for MLA \(kv_lora_rank=512\)"),
        ({"model_type": "gemma2"}, "model_type 'gemma2'"),
        ({"model_type": "qwen3", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "without low_freq_factor"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, r"part of each head \(partial_rotary_factor=0.5\)"),
        ({"model_type": "llama", "parallel_attn": True}, "side by side"),
        ({"model_type": "llama", "use_qk_norm": True}, "norms of queries and keys"),
        ({"model_type": "llama", "rope_theta": math.nan}, "NaN is not a number"),
        ({"model_type": "mixtral", "num_local_experts": 4, "mlp_bias": True}, "experts with biases"),
        ({"model_type": "dots1", "n_group": 8}, "groups of experts"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "experts in some layers only"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, r"dense layers behind .*mlp_only_layers=\[1\]"),
        ({"model_type": "llama", "layer_types": ["linear_attention"] * 2}, "linear_attention"),
        ({"model_type": "llama", "hidden_act": "relu2"}, "activation 'relu2'"),
        ({"model_type": "llama", "hidden_size": "32"}, "hidden is '32'"),
        ({"model_type": "llama", "num_key_value_heads": 3}, "3 heads of keys"),
    ],
)
def test_unsupported_features_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | fields))
    with pytest.raises(OptionError, match=message):
        load_shape(str(tmp_path / "config.json"))


def test_a_window_shorter_than_the_sequence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "mistral", "sliding_window": 16}))
    with pytest.raises(OptionError, match="looks back on 16 tokens") as refused:
        decoder_of(tmp_path / "config.json")
    assert decoder_of(tmp_path / "config.json", refused.value.hint)[1].sequence == 16


def test_unknown_fields_are_listed(tmp_path: Path) -> None:
    more = {"attention_dropout": 0.1, "novel_mixing": "deep", "use_cache": True, "mlp_bias": False, "other": None}
    (tmp_path / "config.json").write_text(json.dumps(SMALL | more))
    assert unread(str(tmp_path / "config.json")) == ["attention_dropout=0.1", "novel_mixing=deep"]
