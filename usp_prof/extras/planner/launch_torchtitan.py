"""Launch command of torchtitan 0.3: its options (config/configs.py, manager.py), and what it cannot run."""

from __future__ import annotations

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.trainer_rules import Rules, Trainer, rules_except_megatron, torchrun
from usp_prof.model.configuration import ENDS, Configuration, Offload, Recompute
from usp_prof.schedule import schedule_by_name

CONFIGS = {
    "Llama-3-8B": ("llama3", "llama3_8b", Recompute.SELECTIVE),
    "Llama-3-70B": ("llama3", "llama3_70b", Recompute.FULL),
    "Llama-3-405B": ("llama3", "llama3_405b", Recompute.FULL),
    "Qwen3-30B-A3B": ("qwen3", "qwen3_30b_a3b", Recompute.FULL),
    "Qwen3-32B": ("qwen3", "qwen3_32b", Recompute.FULL),
    "GPT-OSS-20B": ("gpt_oss", "gpt_oss_20b", Recompute.FULL),
    "GPT-OSS-120B": ("gpt_oss", "gpt_oss_120b", Recompute.FULL),
    "DeepSeek-V3": ("deepseek_v3", "deepseek_v3_671b", Recompute.SELECTIVE),
}
"""Module, configuration and recomputation of its own models; recomputation is not an option."""


def _words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of the command."""
    module, config, _ = CONFIGS[model.name]
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
    if model.experts:
        words.append(f"--parallelism.expert_parallel_degree {c.ep}")
    if c.zero:
        words.append(f"--parallelism.fsdp_reshard_after_forward {'always' if c.zero == 3 else 'never'}")
    if c.pp > 1:
        words += _pipeline(model, c)
    return words


def _pipeline(model: ModelEntry, c: Configuration) -> list[str]:
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


def _rules_of_model(model: ModelEntry) -> Rules:
    yield model.name not in CONFIGS, f"plans cover only its models {', '.join(CONFIGS)}"


def _rules(model: ModelEntry, c: Configuration) -> Rules:
    _, config, recompute = CONFIGS.get(model.name, ("", "", c.recompute))
    yield c.recompute is not recompute, f"its {config} always uses {recompute} recomputation"
    yield from rules_except_megatron(c)
    yield c.offload is not Offload.NONE, "it cannot offload the optimizer without the weights"
    yield c.zero == 1, "it has ZeRO-2 and ZeRO-3, but no ZeRO-1"
    yield (
        c.zero == 0 and c.dp > 1 and c.devices > c.dp,
        "it combines data parallelism with other axes only as ZeRO-2 or ZeRO-3",
    )
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.dtype != "bf16", "its configurations are for bf16 only"
    yield c.tp > 1 and not c.sequence_parallel, "its tensor parallelism needs sequence parallelism"
    divides_experts = c.ep > 1 and c.tp > 1 and c.etp != 1 and c.dp * c.cp % c.ep == 0
    yield divides_experts, "with expert parallelism, it does not divide experts by tp (--etp 1)"
    yield c.ep > c.shards * c.tp, "its expert parallelism does not span replicas"
    schedule = schedule_by_name(c.schedule)
    unknown = schedule is None or not schedule.traits.pytorch_name
    yield c.pp > 1 and unknown, f"PyTorch has no schedule {c.schedule}"


TORCHTITAN = Trainer(_words, _rules_of_model, _rules)
