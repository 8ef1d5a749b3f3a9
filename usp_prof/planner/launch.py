"""How is a planned configuration started? The options of each trainer that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import unknown_name
from usp_prof.schedule import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.contract import ModelEntry


def command(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Give the command that starts a configuration in one of the `TRAINERS`."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    return " ".join(TRAINERS[trainer](model, configuration))


def _ours(model: ModelEntry, c: Configuration) -> list[str]:
    words = [f"torchrun --nproc-per-node {c.devices} trainer/run.py --profile --dp {c.dp} --tp {c.tp} --cp {c.cp}"]
    words += [f"--pp {c.pp} --zero {c.zero} --micro-batches {c.micro_batches} --dtype {c.dtype}"]
    words += [f"--schedule {c.schedule}"] if c.pp > 1 else []
    words += [f"--ep {c.ep}"] if model.experts else []
    words += [f"--recompute {c.recompute}"] if c.recompute is not Recompute.NONE else []
    return words


def _torchtitan(model: ModelEntry, c: Configuration) -> list[str]:
    """Sharding is its default; a degree that replicates stands for ZeRO-0."""
    shard, replicate = (1, c.dp) if c.zero == 0 else (c.dp, 1)
    words = [
        f"NGPU={c.devices} ./run_train.sh",
        f"--parallelism.data_parallel_shard_degree {shard} --parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.tensor_parallel_degree {c.tp} --parallelism.context_parallel_degree {c.cp}",
        f"--parallelism.pipeline_parallel_degree {c.pp}",
        f"--training.seq_len {model.sequence} --training.local_batch_size {c.micro_batch * c.micro_batches}",
        f"--training.global_batch_size {c.batch}",
    ]
    if c.zero in (1, 2):
        words.append("--parallelism.fsdp_reshard_after_forward never")
    schedule = named(c.schedule)
    if c.pp > 1 and schedule is not None and schedule.traits.pytorch_name:
        words.append(f"--parallelism.pipeline_parallel_schedule {schedule.traits.pytorch_name}")
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}")
    if model.experts:
        words.append(f"--parallelism.expert_parallel_degree {c.ep}")
    words.append(f"--activation_checkpoint.mode {c.recompute}")
    return words


def _megatron(model: ModelEntry, c: Configuration) -> list[str]:
    words = [
        f"torchrun --nproc-per-node 8 --nnodes {-(-c.devices // 8)} pretrain_gpt.py",
        f"--tensor-model-parallel-size {c.tp} --pipeline-model-parallel-size {c.pp}",
        f"--context-parallel-size {c.cp} --micro-batch-size {c.micro_batch} --global-batch-size {c.batch}",
        f"--seq-length {model.sequence}",
    ]
    words += ["--sequence-parallel"] if c.tp > 1 else []
    words += ["--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"] if c.zero in (1, 2) else []
    words += ["--use-torch-fsdp2"] if c.zero == 3 else []
    words += [f"--num-virtual-stages-per-pipeline-rank {c.chunks}"] if c.chunks > 1 else []
    words += [f"--expert-model-parallel-size {c.ep}"] if model.experts else []
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    words += {Recompute.FULL: [full], Recompute.SELECTIVE: ["--recompute-granularity selective"]}.get(c.recompute, [])
    words += ["--bf16"] if c.dtype == "bf16" else []
    return words


TRAINERS: dict[str, Callable[[ModelEntry, Configuration], list[str]]] = {
    "usp-prof": _ours,
    "torchtitan": _torchtitan,
    "megatron": _megatron,
}
"""The trainers that a plan can be written for."""
