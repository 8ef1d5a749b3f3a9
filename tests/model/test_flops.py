from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof import conventions
from usp_prof.contract import ModelEntry
from usp_prof.model import flops
from usp_prof.model.errors import InputError, UsageError

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = Path(__file__).parents[2] / "../shared/reference/published.csv.gz"
LLAMA_8B_CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip


def entry(row: Any, **more: Any) -> ModelEntry:
    """Make the model of a published row."""
    heads = int(row.heads)
    made = ModelEntry(
        layers=int(row.layers), hidden=int(row.hidden), heads=heads, kv_heads=int(row.kv_heads),
        head_dim=int(row.hidden) // heads, ffn_hidden=int(row.ffn), vocab=int(row.vocab), sequence=int(row.seq),
    )  # fmt: skip
    return replace(made, **more)


def dense(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep rows whose whole shape is published."""
    return rows.dropna(subset=["layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq"])


@pytest.mark.real
def test_llm_foundry_counts_as_palm() -> None:
    rows = published("llm_foundry.csv", "mfu_pct", "hfu_pct", "tok_s_gpu")
    assert len(rows) > 200
    for row in rows.itertuples():
        fp8 = "fp8" in row.precision
        peak = 312e12 if row.gpu.startswith("a100") else 1978.96e12 if fp8 else 989.45e12
        model = entry(row, parameters=round(row.params_B * 1e9))
        cost = flops.per_token(model, "palm")
        assert cost is not None
        mfu = 100 * cost * row.tok_s_gpu / peak
        # Only rounding may differ: throughput is truncated to whole tokens, and parameters are rounded.
        assert mfu == pytest.approx(row.mfu_pct, abs=0.01 + mfu / row.tok_s_gpu + 5e-5 / row.params_B * mfu)
        if row.recompute == "full":
            recomputed_cost = flops.hardware_per_token(model, "palm", "full")
            assert recomputed_cost == pytest.approx(cost * 4 / 3)
            assert row.hfu_pct / row.mfu_pct == pytest.approx(4 / 3, abs=2e-3)


@pytest.mark.real
def test_megatron_bridge_counts_as_causal() -> None:
    rows = dense(published("megatron_bridge.csv", "model_tflops_gpu", "tok_s_gpu"))
    # Excludes LoRA and fine-tuning, which do other work per token, and the release whose throughputs are rounded to 32.
    plain = rows.notes.str.contains("Pre-Training") & ~rows.notes.str.contains("26.04")
    rows = rows[rows.model.str.contains("Llama-3") & plain]
    assert len(rows) > 10
    for row in rows.itertuples():
        cost = flops.per_token(entry(row), "causal")
        assert cost is not None
        slack = 0.5 + cost * 0.5 / 1e12 + 2e-3 * row.model_tflops_gpu
        assert cost * row.tok_s_gpu / 1e12 == pytest.approx(row.model_tflops_gpu, abs=slack)


@pytest.mark.real
def test_dgxc_counts_as_matmul() -> None:
    rows = dense(published("dgxc.csv", "mfu_pct", "step_time_s"))
    rows = rows[rows.model.str.contains("Llama-3") & (rows.gpu == "h100_80gb")]
    assert len(rows) > 10
    errors = []
    for row in rows.itertuples():
        peak = 1979e12 if row.precision == "fp8" else 989e12
        cost = flops.per_token(entry(row), "matmul")
        assert cost is not None
        mfu = 100 * cost * row.gbs_samples * row.seq / (row.step_time_s * row.n_gpus * peak)
        errors.append(mfu / row.mfu_pct - 1)
    assert max(abs(error) for error in errors) < 0.01


@pytest.mark.real
def test_the_playbook_counts_as_palm() -> None:
    rows = published("playbook.csv", "mfu_pct", "tok_s_gpu")
    # With more than one stage the playbook counts the tied embedding of its small models twice.
    rows = rows[(rows.pp == 1) | ~rows.model.str.contains("1B|3B")]
    assert len(rows) > 300
    for row in rows.itertuples():
        cost = flops.per_token(entry(row, parameters=round(row.params_B * 1e9)), "palm")
        assert cost is not None
        assert 100 * cost * row.tok_s_gpu / 989e12 == pytest.approx(row.mfu_pct, abs=0.051 + 0.004 * row.mfu_pct)


def published(name: str, *metrics: str) -> pd.DataFrame:
    """Return the rows of one source, with metrics as columns."""
    if not REFERENCE.exists():
        pytest.skip("the published figures are not available next to the project")
    import pandas as pd  # noqa: PLC0415 - only where the figures are there

    rows = pd.read_csv(REFERENCE, low_memory=False)
    rows = rows[rows.file == name].reset_index(drop=True)
    first = rows[rows.metric == metrics[0]].copy()
    keys = [column for column in rows.columns if column not in {"metric", "value"}]
    first["place"] = first.groupby(keys, dropna=False).cumcount()
    merged = first.rename(columns={"value": metrics[0]}).drop(columns="metric")
    for metric in metrics[1:]:
        other = rows[rows.metric == metric].copy()
        other["place"] = other.groupby(keys, dropna=False).cumcount()
        merged = merged.merge(other.rename(columns={"value": metric}).drop(columns="metric"), on=[*keys, "place"])
    return merged


def test_a_hugging_face_config_describes_llama(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B_CONFIG))
    model = flops.load(path, sequence=8192)
    assert flops.per_token(model, "causal") == pytest.approx(5.147e10, rel=2e-4)
    assert flops.per_token(model, "matmul") == pytest.approx(5.791e10, rel=2e-4)
    assert flops.per_token(model, "palm") == pytest.approx(6.106e10, rel=2e-4)
    assert flops.load(path).sequence == 0
    assert flops.per_token(flops.load(path)) is None


def test_a_mixture_counts_active_parameters() -> None:
    mixtral = {
        **LLAMA_8B_CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32000, "sequence": 4096,
    }  # fmt: skip
    model = flops.describe(mixtral)
    assert conventions.active_parameters(model) == pytest.approx(12.88e9, rel=1e-3)
    deepseek = flops.describe({**mixtral, "first_k_dense_replace": 3, "n_shared_experts": 1})
    assert deepseek.moe_layers == 29


def test_gpt2_is_tied_and_has_no_gate() -> None:
    model = flops.describe({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    assert (model.gated_ffn, model.tied_embeddings, model.ffn_hidden, model.kv_heads) == (False, True, 3072, 12)
    assert conventions.total_parameters(model) == pytest.approx(124e6, rel=0.01)


def test_our_own_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"model": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 8, "ffn_hidden": 1}}))
    assert flops.load(path).head_dim == 16


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": 3}'])
def test_a_file_that_describes_no_model_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises((InputError, UsageError), match=r"config\.json"):
        flops.load(path)


def test_recomputation_counts_only_in_hardware_flops() -> None:
    model = flops.describe({**LLAMA_8B_CONFIG, "sequence": 8192})
    cost = flops.per_token(model, "matmul") or 0.0
    assert flops.hardware_per_token(model, "matmul", "none") == cost
    assert flops.hardware_per_token(model, "matmul", "full") == pytest.approx(cost * 4 / 3)
    assert flops.hardware_per_token(model, "matmul", "selective") == cost + 4 * 32 * 4096 * 8192
    assert flops.hardware_per_token(model, "causal", "selective") == pytest.approx(
        (flops.per_token(model, "causal") or 0.0) + 2 * 32 * 4096 * 8192
    )
    assert flops.hardware_per_token(model, "matmul", "by_block") is None
    assert flops.hardware_per_token(ModelEntry(), "matmul", "full") is None
    assert sum(flops.parts(model).values()) == pytest.approx(cost)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(UsageError, match="convention"):
        flops.per_token(ModelEntry(), "megatron")


def test_repeated_forward_passes_count_each_time() -> None:
    model = ModelEntry(
        layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=128, vocab=100, sequence=32, parameters=90_000
    )
    cost = flops.per_token(model, "matmul")
    assert cost is not None
    assert flops.with_repeats(model, "matmul", 0.0, 0.0) == cost
    assert flops.with_repeats(model, "matmul", 1.0, 1.0) == pytest.approx(cost * 4 / 3)
    assert flops.with_repeats(model, "matmul", 6.5, float("nan")) == pytest.approx(cost * (1 + 6.5 / 3))
    assert flops.with_repeats(model, "matmul", 0.0, 1.0) == flops.hardware_per_token(model, "matmul", "selective")
