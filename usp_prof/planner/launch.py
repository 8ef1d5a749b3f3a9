"""Launch: the command that starts a planned configuration with a trainer, or the reason why the trainer cannot run it.

Options are those of Megatron-LM (core 0.16) and torchtitan 0.3, with the rules that their own checks enforce; a plan
that a trainer cannot express is refused for it, never rounded to a similar one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.schedule import Schedule, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from usp_prof.contract import ModelEntry

    Rules = Iterator[tuple[bool, str]]

NODE = 8
PRESETS = {
    "tiny": (64, 4, 4, 128, 256), "small": (256, 8, 4, 768, 1024), "100m": (768, 12, 12, 2048, 16384),
    "1b": (2048, 32, 8, 8192, 32768), "8b": (4096, 32, 8, 14336, 128256),
}  # fmt: skip
"""Our trainer's models: hidden size, heads, key/value heads, inner width, vocabulary. Layers can be overridden."""
TITAN_CONFIGS = {
    "Llama-3-8B": ("llama3", "llama3_8b", Recompute.SELECTIVE),
    "Llama-3-70B": ("llama3", "llama3_70b", Recompute.FULL),
    "Llama-3-405B": ("llama3", "llama3_405b", Recompute.FULL),
}
"""Module, configuration and its recomputation of torchtitan's own models; what it recomputes is no option."""


def command(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Give the command that starts a configuration in one of the `TRAINERS`; raises with why there is none."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    words, rules = TRAINERS[trainer]
    reason = next((sentence for broken, sentence in rules(model, configuration) if broken), "")
    if reason:
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(words(model, configuration))


def command_or_reason(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Give the command, or a comment that says why there is none."""
    try:
        return command(trainer, model, configuration)
    except UsageError as error:
        return f"# {error}"


def _ours(model: ModelEntry, c: Configuration) -> list[str]:
    preset = _preset(model)
    words = [f"torchrun --nproc-per-node {c.devices} trainer/run.py --profile --model {preset} --layers {model.layers}"]
    words += [f"--sequence {model.sequence} --dp {c.dp} --tp {c.tp} --cp {c.cp} --pp {c.pp} --zero {c.zero}"]
    words += [f"--micro-batches {c.micro_batches} --micro-batch {c.micro_batch} --batch {c.batch} --dtype {c.dtype}"]
    schedule = named(c.schedule)
    if c.pp > 1 and schedule is not None:
        words += [f"--schedule {schedule}"]
        words += [f"--stages-per-rank {c.chunks}"] if schedule.traits.is_looped else []
    words += [f"--experts {model.experts} --top-k {model.experts_per_token} --ep {c.ep}"] if model.experts else []
    words += ["--no-sequence-parallel"] if c.tp > 1 and not c.sequence_parallel else []
    words += [f"--dp-replicate {c.replicas}"] if c.replicas > 1 else []
    words += [f"--recompute {c.recompute}"] if c.recompute is not Recompute.NONE else []
    return words


def _preset(model: ModelEntry) -> str:
    """Find the preset of a model's sizes, whatever its layers; empty when there is none."""
    sizes = (model.hidden, model.heads, model.kv_heads, model.expert_ffn_hidden or model.ffn_hidden, model.vocab)
    return next((name for name, preset in PRESETS.items() if preset == sizes), "")


def _rules_of_ours(model: ModelEntry, c: Configuration) -> Rules:
    yield not _preset(model), f"the model is none of its presets ({', '.join(PRESETS)}): give it a config.json"
    yield c.dtype not in ("fp32", "bf16", "fp8"), f"it has no {c.dtype}"
    plain = c.tp > 1 and not c.sequence_parallel
    yield plain and bool(model.experts), "experts with tp need sequence parallelism"
    yield not c.fused_attention, "its attention is always fused"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.etp > 1, "it does not divide experts by tp"


def _torchtitan(model: ModelEntry, c: Configuration) -> list[str]:
    module, config, _ = TITAN_CONFIGS[model.name]
    replicate = c.dp if c.zero == 0 else c.replicas
    local = c.micro_batch * (c.micro_batches if c.pp > 1 else 1)
    words = [
        f"{_torchrun(c)} -m torchtitan.train --module {module} --config {config}",
        f"--parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.data_parallel_shard_degree {c.dp // replicate}",
        f"--parallelism.tensor_parallel_degree {c.tp} --parallelism.context_parallel_degree {c.cp}",
        f"--parallelism.pipeline_parallel_degree {c.pp} --training.seq_len {model.sequence}",
        f"--training.local_batch_size {local} --training.global_batch_size {c.batch}",
    ]
    if c.zero:
        words.append(f"--parallelism.fsdp_reshard_after_forward {'always' if c.zero == 3 else 'never'}")
    schedule = named(c.schedule)
    if c.pp > 1 and schedule is not None:
        words.append(f"--parallelism.pipeline_parallel_schedule {schedule.traits.pytorch_name}")
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}")
        if schedule.traits.is_looped:
            stages = c.pp * c.chunks
            words.append(f"--parallelism.pipeline_parallel_layers_per_stage {-(-(model.layers + 2) // stages)}")
    return words


def _rules_of_torchtitan(model: ModelEntry, c: Configuration) -> Rules:
    yield model.name not in TITAN_CONFIGS, f"it has no configuration of the model (it has {', '.join(TITAN_CONFIGS)})"
    recompute = TITAN_CONFIGS.get(model.name, ("", "", c.recompute))[2]
    yield c.recompute is not recompute, f"its configuration recomputes {recompute}, which is no option"
    yield c.zero == 1, "it shards gradients with the optimizer (ZeRO-2) or weights too (ZeRO-3)"
    yield c.zero == 0 and c.dp > 1 and c.devices > c.dp, "it replicates data parallelism beside other axes only by FSDP"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.dtype != "bf16", "other types than bf16 are other configurations of it"
    yield c.tp > 1 and not c.sequence_parallel, "without sequence parallelism its loss is another"
    yield not c.fused_attention, "its attention is always fused"
    schedule = named(c.schedule)
    unknown = schedule is None or not schedule.traits.pytorch_name
    yield c.pp > 1 and unknown, f"PyTorch has no schedule {c.schedule}"


def _megatron(model: ModelEntry, c: Configuration) -> list[str]:
    # Megatron's own checks: 1 connection for overlap with tp or cp, more of them for its FSDP.
    connections = "CUDA_DEVICE_MAX_CONNECTIONS=8" if c.zero > 1 else "CUDA_DEVICE_MAX_CONNECTIONS=1"
    words = [f"{connections} {_torchrun(c)} pretrain_gpt.py", *_megatron_model(model)]
    words += [
        f"--tensor-model-parallel-size {c.tp} --pipeline-model-parallel-size {c.pp}",
        f"--context-parallel-size {c.cp} --micro-batch-size {c.micro_batch} --global-batch-size {c.batch}",
    ]
    words += ["--sequence-parallel"] if c.tp > 1 and c.sequence_parallel else []
    words += {
        0: [],
        1: ["--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"],
        2: ["--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads"],
        3: ["--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"],
    }[c.zero]
    words += ["--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor"] if c.zero > 1 else []
    words += [f"--num-virtual-stages-per-pipeline-rank {c.chunks}"] if c.chunks > 1 else []
    if model.experts:
        experts = c.etp or (c.tp if c.dp * c.cp % c.ep == 0 else 1)
        words += [f"--expert-model-parallel-size {c.ep} --expert-tensor-parallel-size {experts}"]
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    words += {Recompute.FULL: [full], Recompute.SELECTIVE: ["--recompute-granularity selective"]}.get(c.recompute, [])
    types = {"bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid", "fp4": "--bf16 --fp4-format e2m1"}
    words += [types[c.dtype]] if c.dtype in types else []
    words += [f"--attention-backend {'flash' if c.fused_attention else 'unfused'}"]
    return [*words, "--mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"]


def _megatron_model(model: ModelEntry) -> list[str]:
    """Describe the model, which Megatron takes from its options."""
    words = [
        f"--num-layers {model.layers} --hidden-size {model.hidden} --num-attention-heads {model.heads}",
        f"--kv-channels {model.head_dim or model.hidden // model.heads} --seq-length {model.sequence}",
        f"--max-position-embeddings {model.sequence} --vocab-size {model.vocab}",
        f"--ffn-hidden-size {model.ffn_hidden or model.expert_ffn_hidden}",
        "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear",
    ]
    if model.kv_heads and model.kv_heads != model.heads:
        words.append(f"--group-query-attention --num-query-groups {model.kv_heads}")
    words += ["--swiglu"] if model.gated_ffn else []
    words += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    if model.experts:
        words.append(f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token} --moe-grouped-gemm")
        words.append(f"--moe-ffn-hidden-size {model.expert_ffn_hidden} --moe-token-dispatcher-type alltoall")
        if model.shared_experts:
            width = model.shared_experts * model.expert_ffn_hidden
            words.append(f"--moe-shared-expert-intermediate-size {width}")
    return words


def _rules_of_megatron(model: ModelEntry, c: Configuration) -> Rules:
    plain = len(model.layer_kinds) < 2 and all(
        block.form in ("full", "dense", "mixture") for kind in model.layer_kinds for block in kind.blocks
    )
    yield not plain, "layers that differ, or are not plain attention, need a script of their own"
    yield 0 < model.moe_layers < model.layers, "experts in some of the layers only need --moe-layer-freq"
    yield named(c.schedule) not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED), f"it has no schedule {c.schedule}"
    stages = c.pp * c.chunks
    yield model.layers % stages != 0, f"its {stages} stages must divide the {model.layers} layers"
    yield c.zero > 1 and c.pp > 1, f"ZeRO-{c.zero} is its FSDP, which is not run with a pipeline here"
    yield c.replicas > 1, "hybrid sharding needs its own sharding strategy between replicas"
    yield bool(model.experts) and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"


def _torchrun(c: Configuration) -> str:
    return f"torchrun --nproc-per-node {min(c.devices, NODE)} --nnodes {-(-c.devices // NODE)}"


TRAINERS: dict[
    str, tuple[Callable[[ModelEntry, Configuration], list[str]], Callable[[ModelEntry, Configuration], Rules]]
] = {
    "usp-prof": (_ours, _rules_of_ours),
    "torchtitan": (_torchtitan, _rules_of_torchtitan),
    "megatron": (_megatron, _rules_of_megatron),
}
"""The trainers that a plan can be written for: the command, and the rules that it must keep."""
