"""Launch command of Megatron-LM (core 0.16): its options, and the configurations that its own checks reject."""

from __future__ import annotations

from itertools import groupby

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.trainer_rules import Rules, Trainer, has_other_optimizer, has_plain_blocks, torchrun
from usp_prof.model.configuration import ENDS, Configuration, Offload, Recompute
from usp_prof.schedule import Schedule, schedule_by_name
from usp_prof.whatif.layout import layers_of_stages

BYTES_WITH_16_BIT_MOMENTS = 8
"""Bytes of optimizer state per weight: a float32 copy of the weight, and two moments of 16 bits."""
FSDP = "--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy"
FSDP_NEEDS = "--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor"
SHARDING = {
    0: "--overlap-grad-reduce",
    1: "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    2: f"{FSDP} optim_grads {FSDP_NEEDS}",
    3: f"{FSDP} optim_grads_params {FSDP_NEEDS}",
}
OFFLOADED = (
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer "
    "--overlap-cpu-optimizer-d2h-h2d"
)
MOMENTS_OF_16_BITS = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
PRECISION = {
    "bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid", "fp4": "--bf16 --fp4-format e2m1",
    "fp32": "",
}  # fmt: skip
TRIAL = "--mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"
"""Options for twenty steps on synthetic data, enough to test a plan."""
SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)


def _words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of the command."""
    # Required by its own checks: one connection for overlap with tp or cp, several for its FSDP.
    connections = 8 if c.zero > 1 else 32 if c.expert_overlap and c.tp == c.cp == 1 else 1
    words = [
        f"CUDA_DEVICE_MAX_CONNECTIONS={connections} {torchrun(c, node)} pretrain_gpt.py",
        *_model(model),
        f"--tensor-model-parallel-size {c.tp} --pipeline-model-parallel-size {c.pp}",
        f"--context-parallel-size {c.cp} --micro-batch-size {c.micro_batch} --global-batch-size {c.batch}",
    ]
    if c.tp > 1 and c.sequence_parallel:
        words.append("--sequence-parallel")
    words.append(SHARDING[c.zero] if c.zero or c.dp * c.cp > 1 else "")
    if c.offload is Offload.OPTIMIZER:
        # Megatron requires the distributed optimizer, which shards nothing with one rank of dp.
        words += ["--use-distributed-optimizer" if c.zero == 0 else "", OFFLOADED]
    elif c.optimizer_bytes == BYTES_WITH_16_BIT_MOMENTS:
        words.append(MOMENTS_OF_16_BITS)
    words += [_stages(model, c), _expert_parallelism(c) if model.experts else "", _recomputation(c)]
    words.append(PRECISION[c.dtype])
    if c.offload_layers:
        words.append(f"--cpu-offloading-num-layers {c.offload_layers}")
    is_narrow = c.dtype in ("fp8", "fp4")
    if (c.gradient_bytes or (2 if is_narrow else 4)) == 2 and c.dtype != "fp32":
        words.append("--grad-reduce-in-bf16")
    if c.dtype == "fp8" and c.zero == 1:
        words.append("--fp8-param-gather")
    words += [f"--attention-backend {'flash' if c.fused_attention else 'unfused'}", TRIAL]
    return [word for word in words if word]


def _stages(model: ModelEntry, c: Configuration) -> str:
    """Return the options for a pipeline's stages: a layout (embedding, layers, loss) if they cannot be even."""
    interleaved = f"--num-virtual-stages-per-pipeline-rank {c.chunks}" if c.chunks > 1 else ""
    if model.layers % c.stages == 0:
        return interleaved
    if (model.layers + ENDS) % c.stages == 0:
        ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
        return f"{interleaved} {ends}".strip()
    layers = "|".join("t" * count for count in layers_of_stages(model.layers, c.stages))
    return f"--pipeline-model-parallel-layout 'E{layers}L'"


def _recomputation(c: Configuration) -> str:
    """Return the recomputation options: `block` counts layers per stage, `uniform` those that share an input."""
    if c.recompute is Recompute.NONE:
        return ""
    granularity = f"--recompute-granularity {c.recompute}"
    if c.recompute is Recompute.SELECTIVE:
        modules = " ".join(c.recompute_modules)
        return f"{granularity} --recompute-modules {modules}" if modules else granularity
    method, layers = ("block", c.recompute_layers) if c.recompute_layers else ("uniform", c.recompute_group)
    return f"{granularity} --recompute-method {method} --recompute-num-layers {layers}"


def _expert_parallelism(c: Configuration) -> str:
    # Experts have all of tp if ep fits into dp x cp, else less, because ep uses ranks of tp.
    tp = c.etp or (c.tp if c.dp * c.cp % c.ep == 0 else 1)
    overlap = " --overlap-moe-expert-parallel-comm" if c.expert_overlap else ""
    return f"--expert-model-parallel-size {c.ep} --expert-tensor-parallel-size {tp}{overlap}"


def _model(model: ModelEntry) -> list[str]:
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
    return [*words, *_experts(model)] if model.experts else words


def _experts(model: ModelEntry) -> list[str]:
    words = [
        f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token} --moe-grouped-gemm",
        f"--moe-ffn-hidden-size {model.expert_ffn_hidden} --moe-token-dispatcher-type alltoall",
    ]
    if model.experts_per_token == 1:  # a softmax over one chosen expert has no gradient
        words.append("--moe-router-pre-softmax")
    if model.shared_experts:
        words.append(f"--moe-shared-expert-intermediate-size {model.shared_experts * model.expert_ffn_hidden}")
    if 0 < model.moe_layers < model.layers:
        words.append(f"--moe-layer-freq '{_layers_with_experts(model)}'")
    return words


def _layers_with_experts(model: ModelEntry) -> str:
    """Return which layers have experts, such as `[0]*3+[1]*58`; without an order, they are at a regular distance."""
    if not model.layer_order:
        return str(model.layers // model.moe_layers)
    has_experts = [any(block.experts for block in model.layer_kinds[kind].blocks) for kind in model.layer_order]
    return "+".join(f"[{int(has)}]*{len(list(layers))}" for has, layers in groupby(has_experts))


def _rules_of_model(model: ModelEntry) -> Rules:
    yield not has_plain_blocks(model), "attention that is not plain, or differs between layers, needs its own script"
    is_regular = not model.moe_layers or model.layers % model.moe_layers == 0
    yield not (model.layer_order or is_regular), "which of its layers have experts is unknown"


def _rules(model: ModelEntry, c: Configuration) -> Rules:
    yield schedule_by_name(c.schedule) not in SCHEDULES, f"it has no schedule {c.schedule}"
    yield model.experts > 0 and c.dtype in ("fp16", "fp32"), f"its products of experts have no {c.dtype}"
    yield c.zero > 1 and c.pp > 1, f"plans do not combine ZeRO-{c.zero} (Megatron-FSDP) with a pipeline"
    yield c.replicas > 1, "plans do not cover its hybrid sharding"
    is_offloaded = c.offload is Offload.OPTIMIZER
    yield is_offloaded and c.zero == 0 and c.dp * c.cp > 1, "offloading its optimizer needs ZeRO-1"
    yield is_offloaded and c.zero > 1, "plans do not combine Megatron-FSDP with an offloaded optimizer"
    yield bool(model.experts) and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"
    yield c.offload_layers > 0 and c.pp > 1, "it offloads activations only without a pipeline"
    yield c.expert_overlap and c.recompute is Recompute.FULL, "it overlaps no expert exchange with full recomputation"
    yield (
        c.expert_overlap and c.pp > 1 and c.chunks == 1,
        "it overlaps the expert exchange in interleaved pipelines only",
    )
    has_latents = any(block.form == "latent" for kind in model.layer_kinds for block in kind.blocks)
    yield "mla_up_proj" in c.recompute_modules and not has_latents, "mla_up_proj needs multi-latent attention"
    yield "moe_act" in c.recompute_modules and not model.experts, "moe_act needs experts"
    has_short_moments = c.optimizer_bytes == BYTES_WITH_16_BIT_MOMENTS
    yield has_other_optimizer(c) and not has_short_moments, "its optimizer state takes 12 or 8 bytes per weight"
    yield has_short_moments and (c.zero != 1 or is_offloaded), "16-bit moments need ZeRO-1 and no offload"


MEGATRON = Trainer(_words, _rules_of_model, _rules)
