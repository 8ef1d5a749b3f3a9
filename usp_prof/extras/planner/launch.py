"""Launch commands: how to start a planned configuration with a trainer, or why the trainer cannot run it.

Each trainer has the words of its command, and the rules that its own checks enforce. A plan that a trainer cannot
express is refused, never rounded to a similar one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.extras.planner.cluster import DEVICES_PER_NODE
from usp_prof.extras.planner.launch_megatron import MEGATRON
from usp_prof.extras.planner.launch_nanotron import NANOTRON
from usp_prof.extras.planner.trainer_rules import Trainer, rules_except_megatron, torchrun
from usp_prof.model.configuration import ENDS, Offload, Recompute
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.schedule import schedule_by_name

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.extras.planner.trainer_rules import Rules
    from usp_prof.model.configuration import Configuration

# Our own trainer: the words of `trainer/run.py`, and the configurations it cannot run.

PRESETS = {
    "tiny": (64, 4, 4, 128, 256), "small": (256, 8, 4, 768, 1024), "100m": (768, 12, 12, 2048, 16384),
    "1b": (2048, 32, 8, 8192, 32768), "8b": (4096, 32, 8, 14336, 128256),
}  # fmt: skip
"""Its models: hidden size, heads, key/value heads, inner width, vocabulary. Layers can be overridden."""
OWN_DTYPES = ("fp32", "bf16", "fp8")


def _own_words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
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


def _own_rules(model: ModelEntry, c: Configuration) -> Rules:
    """Yield the rules of the trainer."""
    yield not preset(model), f"the model is not one of its presets ({', '.join(PRESETS)}); pass a config.json"
    yield c.dtype not in OWN_DTYPES, f"it has no {c.dtype}"
    yield model.experts > 0 and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"
    yield c.loss_chunks > 1, "it computes the loss of a micro-batch at once"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.etp > 1, "it does not divide experts by tp"
    yield from rules_except_megatron(c)
    yield c.stages > model.layers, f"each of its {c.stages} stages needs one of the {model.layers} layers"


# torchtitan 0.3: its options (config/configs.py and manager.py), and the configurations it cannot run.

TORCHTITAN_CONFIGS = {
    "Llama-3-8B": ("llama3", "llama3_8b", Recompute.SELECTIVE),
    "Llama-3-70B": ("llama3", "llama3_70b", Recompute.FULL),
    "Llama-3-405B": ("llama3", "llama3_405b", Recompute.FULL),
}
"""Module, configuration and recomputation of its own models; recomputation is not an option."""


def _torchtitan_words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of the command."""
    module, config, _ = TORCHTITAN_CONFIGS[model.name]
    replicate = c.dp if c.zero == 0 else c.replicas
    # With a pipeline it cuts its local batch into micro-batches; without one it accumulates up to the global batch.
    local_batch = c.micro_batch * c.micro_batches if c.pp > 1 else c.micro_batch
    words = [
        f"{torchrun(c, node)} -m torchtitan.train --module {module} --config {config}",
        f"--parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.data_parallel_shard_degree {c.dp // replicate}",
        f"--parallelism.tensor_parallel_degree {c.tp} --parallelism.context_parallel_degree {c.cp}",
        f"--parallelism.pipeline_parallel_degree {c.pp} --training.seq_len {model.sequence}",
        f"--training.local_batch_size {local_batch} --training.global_batch_size {c.batch} --compile.enable",
    ]
    if c.zero:
        words.append(f"--parallelism.fsdp_reshard_after_forward {'always' if c.zero == 3 else 'never'}")
    if c.pp > 1:
        words += _torchtitan_pipeline(model, c)
    return words


def _torchtitan_pipeline(model: ModelEntry, c: Configuration) -> list[str]:
    schedule = schedule_by_name(c.schedule)
    if schedule is None:
        return []
    words = [
        f"--parallelism.pipeline_parallel_schedule {schedule.traits.pytorch_name}",
        f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}",
    ]
    if schedule.traits.is_looped:
        # torchtitan counts embedding and head as one layer each.
        layers = -(-(model.layers + ENDS) // c.stages)
        words.append(f"--parallelism.pipeline_parallel_layers_per_stage {layers}")
    return words


def _torchtitan_rules(model: ModelEntry, c: Configuration) -> Rules:
    """Yield the rules of the trainer."""
    yield (
        model.name not in TORCHTITAN_CONFIGS,
        f"of its models, plans know only {', '.join(TORCHTITAN_CONFIGS)}",
    )
    _, _, recompute = TORCHTITAN_CONFIGS.get(model.name, ("", "", c.recompute))
    yield c.recompute is not recompute, f"its configuration recomputes {recompute}, which is not an option"
    yield from rules_except_megatron(c)
    yield c.offload is not Offload.NONE, "it offloads the weights together with the optimizer"
    yield c.zero == 1, "it shards gradients with the optimizer (ZeRO-2) or weights too (ZeRO-3)"
    yield c.zero == 0 and c.dp > 1 and c.devices > c.dp, "it combines data parallelism with other axes by FSDP only"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.dtype != "bf16", "its configurations are for bf16 only"
    yield c.tp > 1 and not c.sequence_parallel, "its loss needs sequence parallelism"
    schedule = schedule_by_name(c.schedule)
    unknown = schedule is None or not schedule.traits.pytorch_name
    yield c.pp > 1 and unknown, f"PyTorch has no schedule {c.schedule}"


# All trainers.

TRAINERS = {
    "usp-prof": Trainer(_own_words, _own_rules),
    "torchtitan": Trainer(_torchtitan_words, _torchtitan_rules),
    "megatron": MEGATRON,
    "nanotron": NANOTRON,
}
"""Trainers for which a plan can be written."""


def refusal(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return why one of the `TRAINERS` cannot run a configuration, or an empty string."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    rules = TRAINERS[trainer].rules(model, configuration)
    return next((sentence for is_broken, sentence in rules if is_broken), "")


def command(trainer: str, model: ModelEntry, configuration: Configuration, node: int = DEVICES_PER_NODE) -> str:
    """Return the command that starts a configuration on nodes of `node` devices; raise if the trainer cannot run it."""
    if reason := refusal(trainer, model, configuration):
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(TRAINERS[trainer].words(model, configuration, node))
