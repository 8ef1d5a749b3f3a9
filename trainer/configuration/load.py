"""Model files: a shape from a preset's name or from a `config.json` of the Hugging Face kind.

Each field of a file is read, known to have no effect, refused with the feature that it requires, or listed as unread.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.configuration.options import OptionError, refuse
from trainer.configuration.shape import PRESETS, ModelShape, RopeScaling

BIASES = {"qkv_bias": True, "out_bias": True, "ffn_bias": True}
_LLAMA = {"norm_eps": 1e-6, "positions": 2048}
_QWEN = {"norm_eps": 1e-6, "positions": 32768, "kv_heads": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {"norm_eps": 1e-6, "positions": 131072, "kv_heads": 8, "window": 4096},
    "qwen2": {**_QWEN, "qkv_bias": True},
    "qwen3": {**_QWEN, "qk_norm": True, "head_dim": 128},
    "mixtral": {"norm_eps": 1e-5, "positions": 131072, "kv_heads": 8, "rope_theta": 1e6, "experts": 8, "top_k": 2},
    "qwen2_moe": {
        **_QWEN, "kv_heads": 16, "qkv_bias": True, "experts": 60, "top_k": 4, "expert_ffn": 1408, "shared_ffn": 5632,
        "shared_gate": True, "renormalize": False,
    },
    "qwen3_moe": {
        **_QWEN, "kv_heads": 4, "qk_norm": True, "experts": 128, "top_k": 8, "expert_ffn": 768, "renormalize": False,
    },
    "deepseek": {**_LLAMA, "expert_ffn": 1407, "renormalize": False},
    "dots1": {
        **_LLAMA, "kv_heads": 32, "qk_norm": True, "expert_ffn": 1408, "renormalize": False, "scoring": "sigmoid",
    },
    "gpt2": {
        "norm": "layer", "gated": False, "tied": True, "activation": "gelu_new", "positions": 1024, **BIASES,
    },
}  # fmt: skip
"""Supported model types, each with its implied properties and the defaults of its class in transformers.

`positions` is the longest sequence; the other names are those of a shape."""

FIELDS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon"),
    "activation": ("hidden_act", "activation_function"),
    "tied": ("tie_word_embeddings",),
    "qkv_bias": ("qkv_bias",),
    "ffn_bias": ("mlp_bias",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense": ("first_k_dense_replace",),
    "scoring": ("scoring_func",),
    "renormalize": ("norm_topk_prob",),
    "routed_scale": ("routed_scaling_factor",),
}
"""Fields of a shape, and their names in files."""
DERIVED = (
    "model_type", "max_position_embeddings", "n_positions", "n_ctx", "attention_bias", "n_shared_experts",
    "mlp_only_layers", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "rope_theta",
    "rope_scaling", "rope_parameters",
)  # fmt: skip
"""Fields that `load` reads in other ways."""
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip

OFF = (None, False, 0, [], {}, "")
ONE = (None, 1)
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "kv_lora_rank": ("MLA", OFF),
    "q_lora_rank": ("MLA", OFF),
    "partial_rotary_factor": ("rotary positions on a part of each head", ONE),
    "rotary_pct": ("rotary positions on a part of each head", ONE),
    "no_rope_layers": ("layers without positions", OFF),
    "alibi": ("ALiBi", OFF),
    "n_group": ("routing within groups of experts", ONE),
    "topk_group": ("routing within groups of experts", ONE),
    "decoder_sparse_step": ("experts in some layers only", ONE),
    "moe_layer_freq": ("experts in some layers only", ONE),
    "num_nextn_predict_layers": ("multi-token prediction", OFF),
    "attn_logit_softcapping": ("soft-capped scores", OFF),
    "final_logit_softcapping": ("soft-capped logits", OFF),
    "query_pre_attn_scalar": ("another scale of scores", OFF),
    "attention_multiplier": ("another scale of scores", OFF),
    "scale_attn_by_inverse_layer_idx": ("scores scaled by layer", OFF),
    "scale_attn_weights": ("scores that are not scaled", (None, True)),
    "clip_qkv": ("clipped queries and keys", OFF),
    "embedding_multiplier": ("scaled embeddings", ONE),
    "residual_multiplier": ("scaled residuals", ONE),
    "logits_scaling": ("scaled logits", ONE),
    "use_parallel_residual": ("attention and feed-forward side by side", OFF),
    "parallel_attn": ("attention and feed-forward side by side", OFF),
    "use_qk_norm": ("norms of queries and keys, which its model_type fixes here", OFF),
    "use_bidirectional_attention": ("attention to later tokens", OFF),
    "is_encoder_decoder": ("an encoder", OFF),
    "add_cross_attention": ("cross-attention", OFF),
    "vision_config": ("images", OFF),
    "mamba_d_state": ("state-space layers", OFF),
    "quantization_config": ("quantized weights", OFF),
}
"""Fields for features that the trainer does not support: the feature, and the values that do not ask for it."""
SILENT = re.compile(
    r"_.*|architectures|auto_map|.*token_id|chunk_size_feed_forward|(torch_)?dtype|ep_size|id2label|label2id|name"
    r"|output_.*|pretraining_tp|problem_type|reorder_and_upcast_attn|return_dict|summary_.*|task_specific_params"
    r"|tokenizer_class|topk_method|(transformers|unsloth)_version|use_cache"
)
"""Fields without an effect on training here."""

LONGEST = 4096
"""Maximum sequence length taken from a file; `--sequence` can be longer."""
HINT = f"a config.json of one of {', '.join(FAMILIES)}, or a preset: {', '.join(PRESETS)}"


def load_shape(name: str, *, flag: str = "--model", **changes: Any) -> ModelShape:  # noqa: ANN401 - sizes of a shape
    """Return a preset or read a file, named by option `flag`; `changes` that are not `None` override sizes."""
    title = f"{flag} {name}"
    if name.endswith(".json"):
        shape = shape_of(_read(name, title), title, Path(name).stem)
    elif name in PRESETS:
        shape = PRESETS[name]
    else:
        raise OptionError(f"{title} is not a known model", hint=f"one of {', '.join(PRESETS)}, or a config.json")
    return replace(shape, **{key: value for key, value in changes.items() if value is not None})


def unread(name: str) -> list[str]:
    """Return the fields of a file that are ignored and may matter; none for a preset."""
    if not name.endswith(".json"):
        return []
    known_fields = {field for fields in FIELDS.values() for field in fields} | {*DERIVED, *REFUSED}
    left = {
        field: value
        for field, value in _read(name, f"--model {name}").items()
        if field not in known_fields and value not in OFF and not SILENT.fullmatch(field)
    }
    if left.get("initializer_range") == 0.02:  # the trainer initializes weights with it
        del left["initializer_range"]
    return [f"{field}={value}" for field, value in sorted(left.items())]


def shape_of(data: dict[str, Any], title: str, name: str) -> ModelShape:
    """Read a configuration; refuse unsupported features, with their names."""
    for field, (feature, neutral) in REFUSED.items():
        value = data.get(field)
        rule = f"{title}: this file asks for {feature} ({field}={_short(value)}), which the trainer does not support"
        refuse(field in data and value not in neutral, rule, HINT)
    family = data.get("model_type", "llama")
    refuse(family not in FAMILIES, f"{title}: model_type {family!r} is not supported", HINT)
    values = FAMILIES[family] | _fields(data)
    if "num_key_value_heads" in data:  # null means one per head
        values["kv_heads"] = data["num_key_value_heads"] or 0
    if "attention_bias" in data and family != "qwen2":
        values["qkv_bias"] = values["out_bias"] = bool(data["attention_bias"])
    for size in ("layers", "hidden", "heads", "vocab"):
        refuse(not values.get(size), f"{title}: it has no {size}", HINT)
    values["ffn"] = values.get("ffn") or (4 * values["hidden"] if family == "gpt2" else 0)
    refuse(not values["ffn"], f"{title}: it has no intermediate_size", HINT)
    _check_sizes(values, title)
    positions, window = values.pop("positions"), values.pop("window", 0)
    longest = int(data.get("max_position_embeddings") or data.get("n_positions") or data.get("n_ctx") or positions)
    if family == "gpt2":
        values["learned_positions"] = longest
    if shared := data.get("n_shared_experts"):
        values["shared_ffn"] = shared * (values.get("expert_ffn") or values["ffn"])
    values["first_dense"] = _first_dense(data, values, title)
    act = values.get("activation", "silu")
    refuse(act not in ACTIVATIONS, f"{title}: activation {act!r} is none of {', '.join(ACTIVATIONS)}", HINT)
    values["activation"] = ACTIVATIONS[act]
    if not values.get("experts"):  # a mixture family without experts
        values |= {"experts": 0, "shared_ffn": 0, "shared_gate": False, "first_dense": 0}
    biased = values["experts"] and values.get("ffn_bias")
    refuse(biased, f"{title}: this file asks for experts with biases, which the trainer does not support", HINT)
    values |= _rotary(data, title, longest)
    return ModelShape(
        name=data.get("name") or family if "model_type" in data else name,
        sequence=min(longest, LONGEST),
        window=_window(data, family, window, title),
        **values,
    )


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    fields = {}
    for field, names in FIELDS.items():
        for name in names:
            if data.get(name) is not None:
                fields[field] = data[name]
                break
    return fields


def _check_sizes(values: dict[str, Any], title: str) -> None:
    for size, value in values.items():
        if size in {"activation", "scoring", "norm"}:
            continue
        refuse(not isinstance(value, (int, float)) or value < 0, f"{title}: {size} is {value!r}", HINT)
    heads, hidden = values["heads"], values["hidden"]
    values["kv_heads"] = kv_heads = values.get("kv_heads") or heads
    refuse(heads % kv_heads, f"{title}: {kv_heads} heads of keys do not divide {heads} heads", HINT)
    uneven = not values.get("head_dim") and hidden % heads
    refuse(uneven, f"{title}: {heads} heads do not divide hidden = {hidden}, and it has no head_dim", HINT)
    odd = (values.get("head_dim") or hidden // heads) % 2
    refuse(odd, f"{title}: heads of an odd width cannot be rotated", HINT)
    scoring = values.get("scoring", "softmax")
    refuse(scoring not in {"softmax", "sigmoid"}, f"{title}: scoring_func {scoring!r} is not softmax or sigmoid", HINT)


def _first_dense(data: dict[str, Any], values: dict[str, Any], title: str) -> int:
    """Count the dense layers before the first layer with experts; refuse dense layers after it."""
    dense = sorted(data.get("mlp_only_layers") or [])
    rule = f"{title}: this file asks for dense layers behind those with experts (mlp_only_layers={dense})"
    refuse(dense != list(range(len(dense))), rule, "dense layers before all others only: mlp_only_layers=[0, 1, …]")
    return len(dense) or int(values.get("first_dense") or 0)


def _window(data: dict[str, Any], family: str, usual: int, title: str) -> int:
    """Return the sliding window if any layer uses it; `usual` is the default."""
    types = set(data.get("layer_types") or ())
    other = ", ".join(sorted(types - {"full_attention", "sliding_attention"}))
    refuse(other, f"{title}: this file asks for {other} (layer_types), which the trainer does not support", HINT)
    everywhere = data.get("use_sliding_window", family in {"mistral", "mixtral"})
    used = "sliding_attention" in types if types else everywhere
    return int(data.get("sliding_window", usual) or 0) if used else 0


def _rotary(data: dict[str, Any], title: str, longest: int) -> dict[str, Any]:
    """Read base and scaling of rotary positions, from the fields of transformers 4 or 5."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    values: dict[str, Any] = {}
    theta = rope.get("rope_theta", data.get("rope_theta"))
    if theta is not None:
        values["rope_theta"] = float(theta)
    kind = rope.get("rope_type", rope.get("type", "default"))
    rule = f"{title}: this file asks for rope scaling {kind!r}, but only linear, llama3 and yarn are supported"
    is_nested = any(isinstance(value, dict) for value in rope.values())
    refuse(kind not in {"default", "linear", "llama3", "yarn"} or is_nested, rule, HINT)
    part = rope.get("partial_rotary_factor", 1)
    refuse(part != 1, f"{title}: this file asks for rotary positions on a part ({part}) of each head", HINT)
    if kind == "default":
        return values
    original = int(rope.get("original_max_position_embeddings") or longest)
    factor = float(rope.get("factor") or longest / original)
    scaling = RopeScaling(kind, factor, original)
    if kind == "llama3":
        lacking = [name for name in ("low_freq_factor", "high_freq_factor") if name not in rope]
        refuse(lacking, f"{title}: rope scaling llama3 without {' and '.join(lacking)}", HINT)
        scaling = replace(scaling, low=float(rope["low_freq_factor"]), high=float(rope["high_freq_factor"]))
    if kind == "yarn":
        scaling = replace(
            scaling,
            low=float(rope.get("beta_slow") or 1),
            high=float(rope.get("beta_fast") or 32),
            attention_factor=_sharpening(rope, factor),
            truncate=bool(rope.get("truncate", True)),
        )
    return values | {"rope_scaling": scaling}


def _sharpening(rope: dict[str, Any], factor: float) -> float:
    """Return YaRN's factor for cosines and sines."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def scaled(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    scales = rope.get("mscale"), rope.get("mscale_all_dim")
    return scaled(scales[0]) / scaled(scales[1]) if all(scales) else scaled(1.0)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _no_number(constant: str) -> float:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{constant} is not a number")


def _read(name: str, title: str) -> dict[str, Any]:
    try:
        data = json.loads(Path(name).read_text(), parse_constant=_no_number)
    except OSError as error:
        raise OptionError(f"{title} cannot be read: {error.strerror}", HINT) from error
    except ValueError as error:
        raise OptionError(f"{title} is not JSON: {error}", HINT) from error
    refuse(not isinstance(data, dict), f"{title}: it is not a JSON object", HINT)
    return data
