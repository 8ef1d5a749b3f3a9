"""torchtitan 0.3: its options (config/configs.py and manager.py), and what it cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.configuration import Offload, Recompute
from usp_prof.planner.launch.rules import torchrun
from usp_prof.schedule import named

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.launch.rules import Rules

CONFIGS = {
    "Llama-3-8B": ("llama3", "llama3_8b", Recompute.SELECTIVE),
    "Llama-3-70B": ("llama3", "llama3_70b", Recompute.FULL),
    "Llama-3-405B": ("llama3", "llama3_405b", Recompute.FULL),
}
"""Module, configuration and its recomputation of its own models; what it recomputes is no option."""
OUTSIDE_OF_LAYERS = 2
"""The embedding and the head, which it counts as a layer each when it cuts stages."""


def words(model: ModelEntry, c: Configuration) -> list[str]:
    """Give the command, option by option."""
    module, config, _ = CONFIGS[model.name]
    replicate = c.dp if c.zero == 0 else c.replicas
    # With a pipeline it cuts its local batch into micro-batches; without one it accumulates up to the global batch.
    local_batch = c.micro_batch * c.micro_batches if c.pp > 1 else c.micro_batch
    found = [
        f"{torchrun(c)} -m torchtitan.train --module {module} --config {config}",
        f"--parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.data_parallel_shard_degree {c.dp // replicate}",
        f"--parallelism.tensor_parallel_degree {c.tp} --parallelism.context_parallel_degree {c.cp}",
        f"--parallelism.pipeline_parallel_degree {c.pp} --training.seq_len {model.sequence}",
        f"--training.local_batch_size {local_batch} --training.global_batch_size {c.batch}",
    ]
    if c.zero:
        found.append(f"--parallelism.fsdp_reshard_after_forward {'always' if c.zero == 3 else 'never'}")
    if c.pp > 1:
        found += _pipeline(model, c)
    return found


def _pipeline(model: ModelEntry, c: Configuration) -> list[str]:
    schedule = named(c.schedule)
    if schedule is None:
        return []
    found = [
        f"--parallelism.pipeline_parallel_schedule {schedule.traits.pytorch_name}",
        f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}",
    ]
    if schedule.traits.is_looped:
        layers = -(-(model.layers + OUTSIDE_OF_LAYERS) // (c.pp * c.chunks))
        found.append(f"--parallelism.pipeline_parallel_layers_per_stage {layers}")
    return found


def rules(model: ModelEntry, c: Configuration) -> Rules:
    """Give what it refuses."""
    yield model.name not in CONFIGS, f"it has no configuration of the model (it has {', '.join(CONFIGS)})"
    _, _, recompute = CONFIGS.get(model.name, ("", "", c.recompute))
    yield c.recompute is not recompute, f"its configuration recomputes {recompute}, which is no option"
    some = c.recompute_layers > 0 or c.recompute_group > 1
    yield some, "it recomputes all layers of a stage, one at a time"
    yield c.offload is not Offload.NONE, "it offloads weights with the optimizer, which is another plan"
    yield c.zero == 1, "it shards gradients with the optimizer (ZeRO-2) or weights too (ZeRO-3)"
    yield c.zero == 0 and c.dp > 1 and c.devices > c.dp, "it replicates data parallelism beside other axes only by FSDP"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    yield c.dtype != "bf16", "other types than bf16 are other configurations of it"
    yield c.tp > 1 and not c.sequence_parallel, "without sequence parallelism its loss is another"
    yield not c.fused_attention, "its attention is always fused"
    schedule = named(c.schedule)
    unknown = schedule is None or not schedule.traits.pytorch_name
    yield c.pp > 1 and unknown, f"PyTorch has no schedule {c.schedule}"
