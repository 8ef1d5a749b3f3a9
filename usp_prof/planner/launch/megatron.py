"""Megatron-LM (core 0.16): its options, and what its own checks refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.configuration import Offload, Recompute
from usp_prof.planner.launch.rules import torchrun
from usp_prof.schedule import Schedule, named

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.launch.rules import Rules

FSDP = "--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy"
FSDP_NEEDS = "--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor"
SHARDING = {
    0: "",
    1: "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    2: f"{FSDP} optim_grads {FSDP_NEEDS}",
    3: f"{FSDP} optim_grads_params {FSDP_NEEDS}",
}
OFFLOADED = (
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer "
    "--overlap-cpu-optimizer-d2h-h2d"
)
PRECISION = {
    "bf16": "--bf16", "fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid", "fp4": "--bf16 --fp4-format e2m1",
    "fp32": "",
}  # fmt: skip
TRIAL = "--mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"
"""Twenty steps of made-up data: enough to see whether a plan holds."""
SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
PLAIN_FORMS = ("full", "dense", "mixture")
"""Forms of a layer's blocks that its options describe."""


def words(model: ModelEntry, c: Configuration) -> list[str]:
    """Give the command, option by option."""
    found = [
        f"CUDA_DEVICE_MAX_CONNECTIONS={_connections(c)} {torchrun(c)} pretrain_gpt.py",
        *_model(model),
        f"--tensor-model-parallel-size {c.tp} --pipeline-model-parallel-size {c.pp}",
        f"--context-parallel-size {c.cp} --micro-batch-size {c.micro_batch} --global-batch-size {c.batch}",
    ]
    if c.tp > 1 and c.sequence_parallel:
        found.append("--sequence-parallel")
    found.append(SHARDING[c.zero])
    if c.offload is Offload.OPTIMIZER:
        # It asks for the distributed optimizer, which shards nothing where there is one rank of dp.
        found += ["--use-distributed-optimizer" if c.zero == 0 else "", OFFLOADED]
    if c.chunks > 1:
        found.append(f"--num-virtual-stages-per-pipeline-rank {c.chunks}")
    if model.experts:
        found.append(f"--expert-model-parallel-size {c.ep} --expert-tensor-parallel-size {_tp_of_experts(c)}")
    found += [_recomputation(c), PRECISION[c.dtype]]
    found += [f"--attention-backend {'flash' if c.fused_attention else 'unfused'}", TRIAL]
    return [word for word in found if word]


def _recomputation(c: Configuration) -> str:
    """Give what is computed again: `block` counts layers of a stage, `uniform` those that share an input."""
    if c.recompute is Recompute.NONE:
        return ""
    granularity = f"--recompute-granularity {c.recompute}"
    if c.recompute is Recompute.SELECTIVE:
        return granularity
    method, layers = ("block", c.recompute_layers) if c.recompute_layers else ("uniform", c.recompute_group)
    return f"{granularity} --recompute-method {method} --recompute-num-layers {layers}"


def _connections(c: Configuration) -> int:
    """Its own checks: one connection for overlap with tp or cp, more of them for its FSDP."""
    return 8 if c.zero > 1 else 1


def _tp_of_experts(c: Configuration) -> int:
    """Divide experts by tp where ep fits into dp x cp; else their ranks are taken out of tp."""
    return c.etp or (c.tp if c.dp * c.cp % c.ep == 0 else 1)


def _model(model: ModelEntry) -> list[str]:
    """Describe the model, which Megatron takes from its options."""
    found = [
        f"--num-layers {model.layers} --hidden-size {model.hidden} --num-attention-heads {model.heads}",
        f"--kv-channels {model.head_dim or model.hidden // model.heads} --seq-length {model.sequence}",
        f"--max-position-embeddings {model.sequence} --vocab-size {model.vocab}",
        f"--ffn-hidden-size {model.ffn_hidden or model.expert_ffn_hidden}",
        "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear",
    ]
    if model.kv_heads and model.kv_heads != model.heads:
        found.append(f"--group-query-attention --num-query-groups {model.kv_heads}")
    if model.gated_ffn:
        found.append("--swiglu")
    if not model.tied_embeddings:
        found.append("--untie-embeddings-and-output-weights")
    return [*found, *_experts(model)] if model.experts else found


def _experts(model: ModelEntry) -> list[str]:
    found = [
        f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token} --moe-grouped-gemm",
        f"--moe-ffn-hidden-size {model.expert_ffn_hidden} --moe-token-dispatcher-type alltoall",
    ]
    if model.shared_experts:
        found.append(f"--moe-shared-expert-intermediate-size {model.shared_experts * model.expert_ffn_hidden}")
    return found


def rules(model: ModelEntry, c: Configuration) -> Rules:
    """Give what it refuses."""
    blocks = [block for kind in model.layer_kinds for block in kind.blocks]
    is_plain = len(model.layer_kinds) < 2 and all(block.form in PLAIN_FORMS for block in blocks)
    yield not is_plain, "layers that differ, or are not plain attention, need a script of their own"
    yield 0 < model.moe_layers < model.layers, "experts in some of the layers only need --moe-layer-freq"
    yield named(c.schedule) not in SCHEDULES, f"it has no schedule {c.schedule}"
    stages = c.pp * c.chunks
    yield model.layers % stages != 0, f"its {stages} stages must divide the {model.layers} layers"
    yield c.zero > 1 and c.pp > 1, f"ZeRO-{c.zero} is its FSDP, which is not run with a pipeline here"
    yield c.replicas > 1, "hybrid sharding needs its own sharding strategy between replicas"
    is_offloaded = c.offload is Offload.OPTIMIZER
    yield is_offloaded and c.zero == 0 and c.dp * c.cp > 1, "its offload needs its distributed optimizer (ZeRO-1)"
    yield is_offloaded and c.zero > 1, "its FSDP is not run with an offloaded optimizer here"
    yield bool(model.experts) and c.tp > 1 and not c.sequence_parallel, "experts with tp need sequence parallelism"
