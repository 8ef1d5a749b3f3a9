"""Launch commands: how to start a planned configuration with a trainer, or why the trainer cannot run it.

Each trainer has the words of its command, and the rules that its own checks enforce. A plan that a trainer cannot
express is refused, never rounded to a similar one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from usp_prof.model.configuration import ENDS, Offload, Recompute
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.footprint import MASTER_AND_MOMENTS
from usp_prof.schedule import Schedule, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration

BYTES_WITH_16_BIT_MOMENTS = 8
"""Bytes of optimizer state per weight: a float32 copy of the weight, and two moments of 16 bits."""
Rules = Iterator[tuple[bool, str]]
"""For each rule, whether the configuration breaks it, and the message."""
NODE = 8


class Trainer(NamedTuple):
    """Command of a trainer, and its rules."""

    words: Callable[[ModelEntry, Configuration], list[str]]
    rules: Callable[[ModelEntry, Configuration], Rules]


def torchrun(c: Configuration) -> str:
    """Return the torchrun words that start one process per device."""
    return f"torchrun --nproc-per-node {min(c.devices, NODE)} --nnodes {-(-c.devices // NODE)}"


def has_other_optimizer(c: Configuration) -> bool:
    """Return whether the optimizer state is not the usual one: float32 moments, and a copy of 16-bit weights."""
    return c.optimizer_bytes not in (0, 8 if c.dtype == "fp32" else MASTER_AND_MOMENTS)


# Our own trainer: the words of `trainer/run.py`, and the configurations it cannot run.

PRESETS = {
    "tiny": (64, 4, 4, 128, 256), "small": (256, 8, 4, 768, 1024), "100m": (768, 12, 12, 2048, 16384),
    "1b": (2048, 32, 8, 8192, 32768), "8b": (4096, 32, 8, 14336, 128256),
}  # fmt: skip
"""Its models: hidden size, heads, key/value heads, inner width, vocabulary. Layers can be overridden."""
OWN_DTYPES = ("fp32", "bf16", "fp8")


def _own_words(model: ModelEntry, c: Configuration) -> list[str]:
    """Return the words of the command."""
    words = [
        f"{torchrun(c) if c.devices > NODE else f'torchrun --nproc-per-node {c.devices}'} trainer/run.py --profile",
        f"--model {preset(model)} --layers {model.layers} --sequence {model.sequence}",
        f"--dp {c.dp} --tp {c.tp} --cp {c.cp} --pp {c.pp} --zero {c.zero}",
        f"--micro-batches {c.micro_batches} --micro-batch {c.micro_batch} --batch {c.batch} --dtype {c.dtype}",
    ]
    schedule = named(c.schedule)
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
    yield not c.fused_attention, "its attention is always fused"
    yield has_other_optimizer(c), "its optimizer state is in float32"
    yield c.loss_chunks > 1, "it computes the loss of a micro-batch at once"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    some = c.recompute_layers > 0 or c.recompute_group > 1
    yield some, "it recomputes all layers of a stage, one at a time"
    yield c.etp > 1, "it does not divide experts by tp"
    yield c.stages > model.layers, f"each of its {c.stages} stages needs one of the {model.layers} layers"


# torchtitan 0.3: its options (config/configs.py and manager.py), and the configurations it cannot run.

TORCHTITAN_CONFIGS = {
    "Llama-3-8B": ("llama3", "llama3_8b", Recompute.SELECTIVE),
    "Llama-3-70B": ("llama3", "llama3_70b", Recompute.FULL),
    "Llama-3-405B": ("llama3", "llama3_405b", Recompute.FULL),
}
"""Module, configuration and recomputation of its own models; recomputation is not an option."""


def _torchtitan_words(model: ModelEntry, c: Configuration) -> list[str]:
    """Return the words of the command."""
    module, config, _ = TORCHTITAN_CONFIGS[model.name]
    replicate = c.dp if c.zero == 0 else c.replicas
    # With a pipeline it cuts its local batch into micro-batches; without one it accumulates up to the global batch.
    local_batch = c.micro_batch * c.micro_batches if c.pp > 1 else c.micro_batch
    words = [
        f"{torchrun(c)} -m torchtitan.train --module {module} --config {config}",
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
    schedule = named(c.schedule)
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
        f"it has no configuration of the model (it has {', '.join(TORCHTITAN_CONFIGS)})",
    )
    _, _, recompute = TORCHTITAN_CONFIGS.get(model.name, ("", "", c.recompute))
    yield c.recompute is not recompute, f"its configuration recomputes {recompute}, which is not an option"
    some = c.recompute_layers > 0 or c.recompute_group > 1
    yield some, "it recomputes all layers of a stage, one at a time"
    yield c.offload is not Offload.NONE, "it offloads the weights together with the optimizer"
    yield c.zero == 1, "it shards gradients with the optimizer (ZeRO-2) or weights too (ZeRO-3)"
    yield c.zero == 0 and c.dp > 1 and c.devices > c.dp, "it combines data parallelism with other axes by FSDP only"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.dtype != "bf16", "its configurations are for bf16 only"
    yield c.tp > 1 and not c.sequence_parallel, "its loss needs sequence parallelism"
    yield not c.fused_attention, "its attention is always fused"
    yield has_other_optimizer(c), "its optimizer state is in float32"
    schedule = named(c.schedule)
    unknown = schedule is None or not schedule.traits.pytorch_name
    yield c.pp > 1 and unknown, f"PyTorch has no schedule {c.schedule}"


# Megatron-LM (core 0.16): its options, and the configurations its own checks reject.

MEGATRON_FSDP = "--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy"
MEGATRON_FSDP_NEEDS = "--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor"
MEGATRON_SHARDING = {
    0: "",
    1: "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    2: f"{MEGATRON_FSDP} optim_grads {MEGATRON_FSDP_NEEDS}",
    3: f"{MEGATRON_FSDP} optim_grads_params {MEGATRON_FSDP_NEEDS}",
}
MEGATRON_OFFLOADED = (
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer "
    "--overlap-cpu-optimizer-d2h-h2d"
)
MEGATRON_16_BIT_MOMENTS = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
MEGATRON_PRECISION = {
    "bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid", "fp4": "--bf16 --fp4-format e2m1",
    "fp32": "",
}  # fmt: skip
MEGATRON_TRIAL = "--mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"
"""Options for twenty steps on synthetic data, enough to test a plan."""
MEGATRON_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
PLAIN_FORMS = ("full", "dense", "mixture")
"""Forms of layer blocks that Megatron's options can describe."""


def _megatron_words(model: ModelEntry, c: Configuration) -> list[str]:
    """Return the words of the command."""
    # Required by its own checks: one connection for overlap with tp or cp, several for its FSDP.
    words = [
        f"CUDA_DEVICE_MAX_CONNECTIONS={8 if c.zero > 1 else 1} {torchrun(c)} pretrain_gpt.py",
        *_megatron_model(model),
        f"--tensor-model-parallel-size {c.tp} --pipeline-model-parallel-size {c.pp}",
        f"--context-parallel-size {c.cp} --micro-batch-size {c.micro_batch} --global-batch-size {c.batch}",
    ]
    if c.tp > 1 and c.sequence_parallel:
        words.append("--sequence-parallel")
    words.append(MEGATRON_SHARDING[c.zero])
    if c.offload is Offload.OPTIMIZER:
        # Megatron requires the distributed optimizer, which shards nothing with one rank of dp.
        words += ["--use-distributed-optimizer" if c.zero == 0 else "", MEGATRON_OFFLOADED]
    elif c.optimizer_bytes == BYTES_WITH_16_BIT_MOMENTS:
        words.append(MEGATRON_16_BIT_MOMENTS)
    if c.chunks > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank {c.chunks}")
    if model.layers % c.stages:
        words.append("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")
    if model.experts:
        words.append(f"--expert-model-parallel-size {c.ep} --expert-tensor-parallel-size {_megatron_tp_of_experts(c)}")
    words += [_megatron_recomputation(c), MEGATRON_PRECISION[c.dtype]]
    is_narrow = c.dtype in ("fp8", "fp4")
    if (c.gradient_bytes or (2 if is_narrow else 4)) == 2 and c.dtype != "fp32":
        words.append("--grad-reduce-in-bf16")
    if c.dtype == "fp8" and c.zero == 1:
        words.append("--fp8-param-gather")
    words += [f"--attention-backend {'flash' if c.fused_attention else 'unfused'}", MEGATRON_TRIAL]
    return [word for word in words if word]


def _megatron_recomputation(c: Configuration) -> str:
    """Return the recomputation options: `block` counts layers per stage, `uniform` those that share an input."""
    if c.recompute is Recompute.NONE:
        return ""
    granularity = f"--recompute-granularity {c.recompute}"
    if c.recompute is Recompute.SELECTIVE:
        return granularity
    method, layers = ("block", c.recompute_layers) if c.recompute_layers else ("uniform", c.recompute_group)
    return f"{granularity} --recompute-method {method} --recompute-num-layers {layers}"


def _megatron_tp_of_experts(c: Configuration) -> int:
    """Return the tp of experts: tp if ep fits into dp x cp, else reduced because ep uses ranks of tp."""
    return c.etp or (c.tp if c.dp * c.cp % c.ep == 0 else 1)


def _megatron_model(model: ModelEntry) -> list[str]:
    """Return the options for the model, which Megatron cannot read from elsewhere."""
    words = [
        f"--num-layers {model.layers} --hidden-size {model.hidden} --num-attention-heads {model.heads}",
        f"--kv-channels {model.head_dim or model.hidden // model.heads} --seq-length {model.sequence}",
        f"--max-position-embeddings {model.sequence} --vocab-size {model.vocab}",
        f"--ffn-hidden-size {model.ffn_hidden or model.expert_ffn_hidden}",
        "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear",
    ]
    if model.kv_heads and model.kv_heads != model.heads:
        words.append(f"--group-query-attention --num-query-groups {model.kv_heads}")
    if model.name.startswith("Qwen3"):
        words.append("--qk-layernorm")
    if model.gated_ffn:
        words.append("--swiglu")
    if not model.tied_embeddings:
        words.append("--untie-embeddings-and-output-weights")
    return [*words, *_megatron_experts(model)] if model.experts else words


def _megatron_experts(model: ModelEntry) -> list[str]:
    words = [
        f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token} --moe-grouped-gemm",
        f"--moe-ffn-hidden-size {model.expert_ffn_hidden} --moe-token-dispatcher-type alltoall",
    ]
    if model.shared_experts:
        words.append(f"--moe-shared-expert-intermediate-size {model.shared_experts * model.expert_ffn_hidden}")
    return words


def _megatron_rules(model: ModelEntry, c: Configuration) -> Rules:
    """Yield the rules of the trainer."""
    blocks = [block for kind in model.layer_kinds for block in kind.blocks]
    is_plain = len(model.layer_kinds) < 2 and all(block.form in PLAIN_FORMS for block in blocks)
    yield not is_plain, "layers that differ, or are not plain attention, need their own script"
    yield 0 < model.moe_layers < model.layers, "experts in only some layers need --moe-layer-freq"
    yield named(c.schedule) not in MEGATRON_SCHEDULES, f"it has no schedule {c.schedule}"
    is_uneven = model.layers % c.stages != 0 and (model.layers + ENDS) % c.stages != 0
    sizes = f"{model.layers} layers, or {model.layers + ENDS} with embedding and head"
    yield is_uneven, f"its {c.stages} stages must divide the {sizes}"
    yield c.zero > 1 and c.pp > 1, f"plans do not combine ZeRO-{c.zero} (Megatron-FSDP) with a pipeline"
    yield c.loss_chunks > 1, "it computes the loss of a micro-batch at once"
    yield c.replicas > 1, "hybrid sharding needs its own sharding strategy between replicas"
    is_offloaded = c.offload is Offload.OPTIMIZER
    yield is_offloaded and c.zero == 0 and c.dp * c.cp > 1, "its offload needs its distributed optimizer (ZeRO-1)"
    yield is_offloaded and c.zero > 1, "plans do not combine Megatron-FSDP with an offloaded optimizer"
    yield bool(model.experts) and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"
    has_short_moments = c.optimizer_bytes == BYTES_WITH_16_BIT_MOMENTS
    yield has_other_optimizer(c) and not has_short_moments, "its optimizer state has 12 or 8 bytes per weight"
    yield has_short_moments and (c.zero != 1 or is_offloaded), "16-bit moments need ZeRO-1 and no offload"


# All trainers.

TRAINERS = {
    "usp-prof": Trainer(_own_words, _own_rules),
    "torchtitan": Trainer(_torchtitan_words, _torchtitan_rules),
    "megatron": Trainer(_megatron_words, _megatron_rules),
}
"""Trainers for which a plan can be written."""


def refusal(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return why one of the `TRAINERS` cannot run a configuration, or an empty string."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    rules = TRAINERS[trainer].rules(model, configuration)
    return next((sentence for is_broken, sentence in rules if is_broken), "")


def command(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return the command that starts a configuration in one of the `TRAINERS`; raise if there is none."""
    if reason := refusal(trainer, model, configuration):
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(TRAINERS[trainer].words(model, configuration))


def command_or_reason(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return the command, or a comment with the reason why there is none."""
    try:
        return command(trainer, model, configuration)
    except UsageError as error:
        return f"# {error}"
