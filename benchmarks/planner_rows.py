"""Rows of the reference tables, in the columns of `usp-prof plan --table`, with their measurements.

Each reader returns a `Measured` for one source. The tables themselves are not part of this repository: their folder is
an argument, `../shared/reference` by default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.stages import WHERE
from usp_prof.extras.planner.sweep.published import SEQUENCES, TOKENS, table_columns
from usp_prof.extras.planner.table import Case, stacked_cases, understood
from usp_prof.model.errors import UspProfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from usp_prof.extras.planner.cases import Cases
    from usp_prof.extras.planner.profiles import Profile
    from usp_prof.model.footprint import Parts


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows that the planner accepts, and their measurements; NaN if not measured."""

    rows: pd.DataFrame
    cases: list[Case]
    seconds: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    refused: list[str]
    refused_failures: int = 0
    """Refused rows that have no measurement."""
    reported_rank: str = ""
    """Pipeline rank whose memory the source reports, a word of `stages.WHERE`; empty: the fullest."""

    def columns(self, profile: Profile | None = None) -> Cases:
        """Return the rows as columns; `profile` replaces each row's own."""
        return stacked_cases(self.cases, profile)

    def peaks(self, stages: tuple[Parts, ...]) -> NDArray[np.float64]:
        """Return the predicted peak of the reported rank, from the footprints of the ranks of `stages.WHERE`."""
        reported = stages[WHERE.index(self.reported_rank)] if self.reported_rank else memory.fullest(stages)
        return memory.total(reported)

    def where(self, keep: NDArray[np.bool_]) -> Measured:
        """Return selected rows."""
        return Measured(
            self.rows[keep].reset_index(drop=True),
            [case for case, is_kept in zip(self.cases, keep.tolist(), strict=True) if is_kept],
            self.seconds[keep],
            self.memory_bytes[keep],
            self.refused,
            reported_rank=self.reported_rank,
        )


def _measured(rows: pd.DataFrame, given: Iterable[Mapping[str, Any]], seconds: Any, memory: Any) -> Measured:  # noqa: ANN401 - columns of numbers
    """Parse every row with the planner; refused rows are omitted, and the reason is stored."""
    cases, good, refused = [], [], []
    for place, row in enumerate(given):
        try:
            cases.append(
                understood({name: str(value) for name, value in row.items() if not pd.isna(value) and value != ""})
            )
            good.append(place)
        except UspProfError as error:
            refused.append(str(error))
    times, sizes = np.asarray(seconds, float), np.asarray(memory, float)
    failures = np.flatnonzero(np.isnan(times) & np.isnan(sizes))
    refused_failures = len(np.setdiff1d(failures, good))
    return Measured(rows.iloc[good].reset_index(drop=True), cases, times[good], sizes[good], refused, refused_failures)


def playbook(folder: Path) -> Measured:
    """Return the Ultra-Scale Playbook's sweep, which has only batches of 256. Failures have no time."""
    rows = pd.read_csv(folder / "playbook.csv.gz")
    rows = rows[rows.dp * rows.mbs * rows.grad_acc == SEQUENCES].reset_index(drop=True)
    given = [table_columns(row) for row in rows.to_dict("records")]
    measured = _measured(rows, given, SEQUENCES * TOKENS / rows.tok_s, rows.mem_gb * 2**30)
    return replace(measured, reported_rank="first")


def vtrain(folder: Path) -> Measured:
    """Return vTrain's single-node rows: Megatron's GPT on A100, without sequence parallelism or fused attention."""
    rows = pd.read_csv(folder / "vtrain_single_node.csv")
    rows.columns = ["devices", "batch", "mbs", "hidden", "heads", "layers", "seq", "tp", "dp", "pp", "ms"]
    given = [
        {
            "layers": row["layers"], "hidden": row["hidden"], "heads": row["heads"], "ffn_hidden": 4 * row["hidden"],
            "gated_ffn": 0, "tied_embeddings": 1, "vocab": 51200, "sequence": row["seq"], "device": "A100",
            "trainer": "megatron", "dp": row["dp"], "tp": row["tp"], "pp": row["pp"], "micro_batch": row["mbs"],
            "batch": row["batch"], "zero": 0, "sequence_parallel": 0, "fused_attention": 0, "dtype": "fp16",
        }
        for row in rows.to_dict("records")
    ]  # fmt: skip
    return _measured(rows, given, rows.ms / 1e3, np.full(len(rows), np.nan))


NAMES = {
    "DeepSeekV3": "DeepSeek-V3", "DeepSeek V3 671B": "DeepSeek-V3", "GPT3-175B": "GPT-3-175B", "Grok1-314B": "Grok-1",
    "Llama4-400B": "Llama-4-Maverick", "Kimi_K2": "Kimi-K2", "Kimi K2": "Kimi-K2", "Qwen3_235B_a22B": "Qwen3-235B-A22B",
    "Qwen3_30B_a3B": "Qwen3-30B-A3B", "Qwen3 MoE 30B": "Qwen3-30B-A3B", "Llama-3.1-405B": "Llama-3-405B",
}  # fmt: skip
TRAINERS = {
    "dgxc.csv": "megatron", "megatron_bridge.csv": "megatron", "nemo_history.csv": "megatron",
    "torchtitan.csv": "torchtitan", "llm_foundry.csv": "fsdp", "nemo_automodel.csv": "torchtitan",
    "nemo_longseq_cp.csv": "megatron",
}  # fmt: skip


RECIPES: dict[str, dict[str, Any]] = {
    r"(dgxc|megatron_bridge)": {"gradient_bytes": 2},
    r"(dgxc|megatron_bridge) (DeepSeek-V3|Kimi-K2)": {"etp": 1},
    r"dgxc DeepSeek-V3 h100": {"recompute_modules": "mla_up_proj"},
    r"dgxc DeepSeek-V3 gb200": {"recompute_modules": "core_attn"},
    r"dgxc (Llama-4-Maverick gb200|Grok-1 h100)": {"etp": 1},
    r"megatron_bridge (DeepSeek-V3|Kimi-K2)": {"optimizer_bytes": 8},
    r"megatron_bridge (DeepSeek-V3 gb200|Kimi-K2)": {"recompute_modules": "mla_up_proj"},
    r"megatron_bridge DeepSeek-V3 h100": {"recompute_modules": "mla_up_proj mlp"},
    r"megatron_bridge DeepSeek-V3 gb300 \S+ \S+ \S+ (25|26.0[24])": {"recompute_modules": "mla_up_proj"},
    r"megatron_bridge DeepSeek-V3 gb300 \S+ \S+ BF16": {"recompute_modules": "mlp moe_act"},
    r"megatron_bridge GPT OSS 120B (h100|gb200)\S* \S+ \S+ BF16": {"recompute_modules": "layernorm moe_act"},
    r"megatron_bridge Llama-3-70B gb200 zero 3": {"offload_layers": 40},
    r"megatron_bridge Llama-3-70B gb300 zero 3": {"offload_layers": 20},
    r"megatron_bridge Llama-3-405B gb200 zero 3": {"offload_layers": 92},
    r"nemo_automodel": {"optimizer_bytes": 4, "gradient_bytes": 2},
    r"nemo_automodel (DeepSeek|Kimi|Qwen3|Nemotron)": {"recompute": "full"},
    r"nemo_automodel GPT.OSS.20B": {"ep": 8},
    r"nemo_automodel GPT.OSS.120B": {"ep": 64},
}
"""Settings that a source's table leaves to the recipe that was run, by source, model, device, type and notes.

They are in NVIDIA-NeMo/Megatron-Bridge (`scripts/performance/configs`, `src/megatron/bridge/recipes`), the launch
scripts of NVIDIA/dgxc-benchmarking, and NVIDIA-NeMo/Automodel (`examples/benchmark/configs`: Adam on bf16 weights).
"""


def _recipe(row: Mapping[str, Any], file: str, model: str) -> dict[str, Any]:
    """Return the settings of the recipe of a row."""
    text = f"{file.removesuffix('.csv')} {model} {row['gpu']} zero {row['zero']} {row['precision']} {row['notes']}"
    settings = [values for pattern, values in RECIPES.items() if re.match(pattern, text)]
    recipe = {name: value for values in settings for name, value in values.items()}
    return recipe | ({"recompute": "selective"} if "recompute_modules" in recipe else {})


def published(folder: Path, file: str) -> Measured:
    """Return the speeds of a source, and its memory peaks if it publishes any."""
    rows = pd.read_csv(folder / "published.csv.gz", low_memory=False)
    rows = rows[(rows.file == file) & rows.metric.isin(["tok_s_gpu", "step_time_s", "mem_gib"])]
    # Fine-tuning (LoRA) computes fewer gradients; the planner has no profile for JAX.
    for column in ("notes", "source"):
        rows = rows[~rows[column].str.contains("LoRA|SFT|MaxText|offload=True", na=False)]
    knobs = [
        "source",
        "model",
        "seq",
        "gpu",
        "n_gpus",
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "mbs",
        "gbs_samples",
        "precision",
        "notes",
    ]
    wide = rows.drop_duplicates([*knobs, "metric"]).copy()
    speed = wide[wide.metric == "tok_s_gpu"]
    seconds_of = speed.gbs_samples.astype(float) * speed.seq / (speed.value * speed.n_gpus)
    step = wide[wide.metric == "step_time_s"]
    peaks = rows[rows.metric == "mem_gib"].drop_duplicates(knobs)[[*knobs, "value"]]
    wide = pd.concat([speed.assign(seconds=seconds_of), step.assign(seconds=step.value)])
    wide = wide.drop_duplicates(knobs).drop(columns="value").merge(peaks, on=knobs, how="left")
    given = [_given(row, file) for row in wide.to_dict("records")]
    return _measured(wide, given, wide.seconds, wide.value * 2**30)


def long_context(folder: Path) -> Measured:
    """Return NeMo's speeds by sequence length: TFLOP/s that count all of attention, 12 x layers x hidden x sequence."""
    file = "nemo_longseq_cp.csv"
    rows = pd.read_csv(folder / "published.csv.gz", low_memory=False)
    rows = rows[(rows.file == file) & (rows.metric == "model_tflops_gpu") & rows.tp.notna()].reset_index(drop=True)
    key_values = rows.hidden * rows.kv_heads / rows.heads
    of_layer = 2 * rows.hidden * (rows.hidden + key_values) + 3 * rows.hidden * rows.ffn
    per_token = 6 * (rows.layers * of_layer + rows.vocab * rows.hidden) + 12 * rows.layers * rows.hidden * rows.seq
    seconds = per_token * rows.gbs_samples * rows.seq / rows.n_gpus / (rows.value * 1e12)
    given = [_given(row, file) | {"micro_batch": 1} for row in rows.to_dict("records")]
    return _measured(rows, given, seconds, np.full(len(rows), np.nan))


def _given(row: dict[str, Any], file: str) -> dict[str, Any]:
    """Convert a published row to the columns of a table; missing values are omitted."""
    name = re.sub(r" \(.*", "", str(row["model"]))
    accumulation = re.search(r"grad_accum=(\d+)", str(row["notes"]))
    columns: dict[str, Any] = {
        "model": NAMES.get(name, name), "sequence": row["seq"], "device": row["gpu"], "devices": row["n_gpus"],
        "trainer": TRAINERS[file], "batch": row["gbs_samples"], "micro_batch": row["mbs"], "dtype": row["precision"],
        "loss_chunks": 1,  # these rows are older than torchtitan's chunked loss
    }  # fmt: skip
    columns |= {
        knob: row[column]
        for knob, column in (("tp", "tp"), ("pp", "pp"), ("cp", "cp"), ("ep", "ep"), ("chunks", "vpp"))
        if row[column] == row[column]
    }
    stage = re.match(r"\d", str(row["zero"]))
    columns["zero"] = stage.group() if stage else ("" if TRAINERS[file] == "megatron" else 3)
    if row["ffn"] == row["ffn"] and row["hidden"] == row["hidden"]:
        shape = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn"}
        columns |= {knob: row[column] for knob, column in shape.items()} | {"vocab": row["vocab"]}
        columns["gated_ffn"] = int(row["ffn"] != 4 * row["hidden"])
        columns["tied_embeddings"] = int(file == "llm_foundry.csv")
    word = str(row["recompute"]).split()[0]
    columns["recompute"] = word if word in ("none", "selective", "full") else "none"
    if accumulation:
        columns["micro_batches"] = accumulation.group(1)
        columns.pop("batch")
    columns |= _recipe(row, file, str(columns["model"]))
    return columns


def published_2026(folder: Path) -> Measured:
    """Return the rows published from 2024 to 2026, which already have the columns of a table."""
    rows = pd.read_csv(folder / "published_2026.csv", low_memory=False)
    return _measured(rows, rows.to_dict("records"), rows.truth_s, rows.truth_gib * 2**30)


NOT_TRAINING = "grpo|distill"
"""Megatron's tests that also hold a second model or the caches of generated text."""
UNFUSED_CLUSTER = "dracooci"
"""Machines of Megatron's tests without fused attention: all peaks are larger by the score matrix than elsewhere."""


def megatron_memory(folder: Path) -> Measured:
    """Return the exact peaks of Megatron's functional tests, for decoders with one kind of layer and even stages."""
    rows = pd.read_csv(folder / "megatron_memory.csv.gz", low_memory=False)
    rows = rows[rows.family.isin(["gpt", "moe", "mixtral"]) & rows["pipeline-model-parallel-layout"].isna()]
    rows = rows[rows["multi-latent-attention"].isna() & rows["use-megatron-fsdp"].isna() & rows.n_gpus.notna()]
    rows = rows[~rows.case.str.contains(NOT_TRAINING) & rows["decoder-first-pipeline-num-layers"].isna()]
    rows = rows[rows["mem_max_allocated_bytes"].notna()].reset_index(drop=True)
    given = [_of_megatron(row) for row in rows.to_dict("records")]
    measured = _measured(rows, given, np.full(len(rows), np.nan), rows.mem_max_allocated_bytes)
    return replace(measured, reported_rank="last")  # Megatron logs on its last rank only


def _of_megatron(row: dict[str, Any]) -> dict[str, Any]:
    """Convert Megatron's options to the columns of a table, with Megatron's own defaults."""

    def option(name: str, default: float) -> float:
        return float(row[name]) if row[name] == row[name] else default

    def is_on(name: str) -> int:
        return int(str(row[name]) == "True")

    hidden, tp, pp = (
        row["hidden-size"],
        option("tensor-model-parallel-size", 1),
        option("pipeline-model-parallel-size", 1),
    )
    layers, experts = row["num-layers"], option("num-experts", 0)
    ffn = option("ffn-hidden-size", 4 * hidden)
    multiple = option("make-vocab-size-divisible-by", 128) * tp
    vocab = -(-option("vocab-size", 50257) // multiple) * multiple
    per_chunk = option("num-layers-per-virtual-pipeline-stage", 0)
    dtype = "bf16" if is_on("bf16") else "fp16" if is_on("fp16") else "fp32"
    # Megatron's own layers have no fused attention unless flash attention is enabled.
    is_unfused = str(row["transformer-impl"]) == "local" and not is_on("use-flash-attn")
    is_unfused |= UNFUSED_CLUSTER in str(row["env"]) and str(row["attention-backend"]) not in ("flash", "fused")
    columns: dict[str, Any] = {
        "layers": layers, "hidden": hidden, "heads": row["num-attention-heads"], "ffn_hidden": ffn, "vocab": vocab,
        "kv_heads": option("num-query-groups", row["num-attention-heads"]), "sequence": row["seq-length"],
        "gated_ffn": is_on("swiglu"), "tied_embeddings": 1 - is_on("untie-embeddings-and-output-weights"),
        "device": {"a100": "A100", "h100": "H100", "gb200": "GB200"}.get(row["gpu"], "A100"), "devices": row["n_gpus"],
        "trainer": "megatron", "tp": tp, "pp": pp, "cp": option("context-parallel-size", 1),
        "ep": option("expert-model-parallel-size", 1), "zero": is_on("use-distributed-optimizer"),
        "micro_batch": row["micro-batch-size"], "batch": row["global-batch-size"],
        "chunks": layers / pp / per_chunk if per_chunk else 1, "sequence_parallel": is_on("sequence-parallel"),
        "fused_attention": int(str(row["attention-backend"]) not in ("unfused", "local") and not is_unfused),
        # Only with bf16 does Megatron accumulate gradients in float32 by default.
        "dtype": dtype, "gradient_bytes": 2 if dtype == "fp16" else "",
        "recompute": "none" if pd.isna(row["recompute-granularity"]) else row["recompute-granularity"],
}  # fmt: skip
    if experts:
        columns |= {
            "experts": experts, "experts_per_token": option("moe-router-topk", 2),
            "expert_ffn_hidden": option("moe-ffn-hidden-size", ffn), "etp": option("expert-tensor-parallel-size", tp),
        }  # fmt: skip
    return columns
