"""Launch command of torchtitan 0.3: its options (config/configs.py, manager.py), and what it cannot run."""

from __future__ import annotations

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.trainer_rules import Rules, Trainer, rules_except_megatron, rules_in_pytorch, torchrun
from usp_prof.model.configuration import ENDS, Configuration, Offload, Recompute
from usp_prof.schedule import schedule_by_name

CONFIGS = {
    ("Llama-3-8B", "bf16"): ("llama3", "llama3_8b", Recompute.SELECTIVE),
    ("Llama-3-70B", "bf16"): ("llama3", "llama3_70b", Recompute.FULL),
    ("Llama-3-405B", "fp8"): ("llama3", "llama3_405b", Recompute.FULL),
    ("Qwen3-30B-A3B", "bf16"): ("qwen3", "qwen3_30b_a3b", Recompute.FULL),
    ("Qwen3-32B", "bf16"): ("qwen3", "qwen3_32b", Recompute.FULL),
    ("GPT-OSS-20B", "bf16"): ("gpt_oss", "gpt_oss_20b", Recompute.FULL),
    ("GPT-OSS-120B", "bf16"): ("gpt_oss", "gpt_oss_120b", Recompute.FULL),
    ("DeepSeek-V3", "bf16"): ("deepseek_v3", "deepseek_v3_671b", Recompute.SELECTIVE),
    ("DeepSeek-V3", "fp8"): ("deepseek_v3", "deepseek_v3_671b_float8", Recompute.SELECTIVE),
}
"""Module, configuration and recomputation of its own models by type; neither recomputation nor type is an option."""
MODELS = tuple(dict.fromkeys(model for model, _ in CONFIGS))
USUAL_CHUNKS = 2
"""Stages per rank of its looped schedules by default."""


def _words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of the command."""
    module, config, _ = CONFIGS[model.name, c.dtype]
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
    if c.pp > 1 or c.ep > 1:  # neither can be captured in CUDA graphs
        words.append("--training.disable_cuda_graphs")
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
    if schedule.traits.is_looped and c.chunks != USUAL_CHUNKS:
        words.append(f"--parallelism.pipeline_parallel_layers_per_stage {_layers_per_stage(model, c)}")
    return words


def _layers_per_stage(model: ModelEntry, c: Configuration) -> int:
    """Return the option from which torchtitan derives this number of stages, or 0 if there is none.

    It counts embedding and head as one layer each.
    """
    layers = model.layers + ENDS
    per_stage = -(-layers // c.stages)
    return per_stage if -(-layers // per_stage) == c.stages else 0


def _rules_of_model(model: ModelEntry) -> Rules:
    yield model.name not in MODELS, f"plans cover only its models {', '.join(MODELS)}"


def _rules(model: ModelEntry, c: Configuration) -> Rules:
    dtypes = [dtype for name, dtype in CONFIGS if name == model.name]
    yield bool(dtypes) and c.dtype not in dtypes, f"its {model.name} is configured for {' and '.join(dtypes)} only"
    _, config, recompute = CONFIGS.get((model.name, c.dtype), ("", "", c.recompute))
    yield c.recompute is not recompute, f"its {config} always uses {recompute} recomputation"
    yield from rules_except_megatron(c)
    yield from rules_in_pytorch(model, c)
    yield c.offload is not Offload.NONE, "it cannot offload the optimizer without the weights"
    yield c.zero == 1, "it has ZeRO-2 and ZeRO-3, but no ZeRO-1"
    yield (
        c.zero == 0 and c.dp > 1 and c.devices > c.dp,
        "it combines data parallelism with other axes only as ZeRO-2 or ZeRO-3",
    )
    yield c.tp > 1 and not c.sequence_parallel, "its tensor parallelism needs sequence parallelism"
    yield c.ep > 1 and c.etp > 1, "with expert parallelism, it does not divide experts by tp"
    schedule = schedule_by_name(c.schedule)
    is_usual = schedule is None or not schedule.traits.is_looped or c.chunks == USUAL_CHUNKS
    yield c.pp > 1 and not is_usual and not _layers_per_stage(model, c), f"no option gives {c.stages} stages"


TORCHTITAN = Trainer(_words, _rules_of_model, _rules)
