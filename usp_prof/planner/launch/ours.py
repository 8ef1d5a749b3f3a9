"""Our own trainer: the words of `trainer/run.py`, and what it cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.configuration import Offload, Recompute
from usp_prof.schedule import named

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.launch.rules import Rules

PRESETS = {
    "tiny": (64, 4, 4, 128, 256), "small": (256, 8, 4, 768, 1024), "100m": (768, 12, 12, 2048, 16384),
    "1b": (2048, 32, 8, 8192, 32768), "8b": (4096, 32, 8, 14336, 128256),
}  # fmt: skip
"""Its models: hidden size, heads, key/value heads, inner width, vocabulary. Layers can be overridden."""
DTYPES = ("fp32", "bf16", "fp8")


def words(model: ModelEntry, c: Configuration) -> list[str]:
    """Give the command, option by option."""
    found = [
        f"torchrun --nproc-per-node {c.devices} trainer/run.py --profile",
        f"--model {preset(model)} --layers {model.layers} --sequence {model.sequence}",
        f"--dp {c.dp} --tp {c.tp} --cp {c.cp} --pp {c.pp} --zero {c.zero}",
        f"--micro-batches {c.micro_batches} --micro-batch {c.micro_batch} --batch {c.batch} --dtype {c.dtype}",
    ]
    schedule = named(c.schedule)
    if c.pp > 1 and schedule is not None:
        found.append(f"--schedule {schedule}")
        if schedule.traits.is_looped:
            found.append(f"--stages-per-rank {c.chunks}")
    if model.experts:
        found.append(f"--experts {model.experts} --top-k {model.experts_per_token} --ep {c.ep}")
    if c.tp > 1 and not c.sequence_parallel:
        found.append("--no-sequence-parallel")
    if c.replicas > 1:
        found.append(f"--dp-replicate {c.replicas}")
    if c.recompute is not Recompute.NONE:
        found.append(f"--recompute {c.recompute}")
    if c.offload is not Offload.NONE:
        found.append(f"--offload {c.offload}")
    return found


def preset(model: ModelEntry) -> str:
    """Find the preset of a model's sizes, whatever its layers; empty when there is none."""
    sizes = (model.hidden, model.heads, model.kv_heads, model.expert_ffn_hidden or model.ffn_hidden, model.vocab)
    return next((name for name, known in PRESETS.items() if known == sizes), "")


def rules(model: ModelEntry, c: Configuration) -> Rules:
    """Give what it refuses."""
    yield not preset(model), f"the model is none of its presets ({', '.join(PRESETS)}): give it a config.json"
    yield c.dtype not in DTYPES, f"it has no {c.dtype}"
    without_sequence_parallelism = c.tp > 1 and not c.sequence_parallel
    yield bool(model.experts) and without_sequence_parallelism, "experts with tp need sequence parallelism"
    yield not c.fused_attention, "its attention is always fused"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    some = c.recompute_layers > 0 or c.recompute_group > 1
    yield some, "it recomputes all layers of a stage, one at a time"
    yield c.etp > 1, "it does not divide experts by tp"
