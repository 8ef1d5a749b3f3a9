"""Launch command of our own trainer: the options of `trainer/run.py`, and the configurations that it cannot run."""

from __future__ import annotations

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.trainer_rules import Rules, Trainer, rules_except_megatron, rules_in_pytorch, torchrun
from usp_prof.model.configuration import Configuration, Offload, Recompute
from usp_prof.schedule import schedule_by_name

PRESETS = {
    "tiny": (64, 4, 4, 128, 256), "small": (256, 8, 4, 768, 1024), "100m": (768, 12, 12, 2048, 16384),
    "1b": (2048, 32, 8, 8192, 32768), "8b": (4096, 32, 8, 14336, 128256),
}  # fmt: skip
"""Its models: hidden size, heads, key/value heads, inner width, vocabulary. Layers can be overridden."""
DTYPES = ("fp32", "bf16", "fp8")


def _words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of the command."""
    words = [
        f"{torchrun(c, node)} trainer/run.py --profile",
        f"--model {preset(model)} --layers {model.layers} --sequence {model.sequence}",
        f"--dp {c.dp} --tp {c.tp} --cp {c.cp} --pp {c.pp} --zero {c.zero}",
        f"--micro-batches {c.micro_batches} --micro-batch {c.micro_batch} --batch {c.batch} --dtype {c.dtype}",
    ]
    schedule = schedule_by_name(c.schedule)
    if c.pp > 1 and schedule is not None:
        words.append(f"--schedule {schedule}")
        if schedule.traits.is_looped:
            words.append(f"--stages-per-rank {c.chunks}")
    if model.experts:
        words.append(f"--experts {model.experts} --top-k {model.experts_per_token} --ep {c.ep}")
    if c.tp > 1 and not c.sequence_parallel:
        words.append("--no-sequence-parallel")
    if c.replicas > 1:
        words.append(f"--dp-replicate {c.replicas}")
    if c.recompute is not Recompute.NONE:
        words.append(f"--recompute {c.recompute}")
    if c.offload is not Offload.NONE:
        words.append(f"--offload {c.offload}")
    return words


def preset(model: ModelEntry) -> str:
    """Return the preset with a model's sizes, ignoring the number of layers; empty if there is none."""
    sizes = (model.hidden, model.heads, model.kv_heads, model.expert_ffn_hidden or model.ffn_hidden, model.vocab)
    return next((name for name, preset_sizes in PRESETS.items() if preset_sizes == sizes), "")


def _rules_of_model(model: ModelEntry) -> Rules:
    yield not preset(model), f"the model is not one of its presets ({', '.join(PRESETS)}); pass a config.json"


def _rules(model: ModelEntry, c: Configuration) -> Rules:
    yield c.dtype not in DTYPES, f"it has no {c.dtype}"
    sizes = (model.expert_ffn_hidden or model.ffn_hidden, model.vocab)
    yield any(size % c.tp for size in sizes), f"tp={c.tp} must divide inner width and vocabulary"
    yield from rules_in_pytorch(model, c)
    yield model.experts > 0 and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"
    yield c.replicas > 1 and c.zero == 0, "its replicas are for ZeRO"
    can_shard = c.shards > 1 or (model.experts > 0 and c.shards * c.tp > c.ep)
    yield c.zero > 0 and not can_shard, "ZeRO has nothing to shard over"
    yield c.etp > 1, "it does not divide experts by tp"
    yield from rules_except_megatron(c)
    yield c.stages > model.layers, f"each of its {c.stages} stages needs one of the {model.layers} layers"


USP_PROF = Trainer(_words, _rules_of_model, _rules)
