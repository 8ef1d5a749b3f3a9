"""DeepSpeed: `with deepspeed.session("traces/my-run", engine, sequence=4096) as session:` around the loop.

In the loop, `deepspeed.step(session, engine)` replaces `engine.step()`. It marks the optimizer, and ends the recorded
step at the end of the engine's gradient accumulation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch.distributed as dist

from usp_prof.record.adapters.fsdp2 import Layout, model_of
from usp_prof.record.marks import phase
from usp_prof.record.options import Options
from usp_prof.record.session import Session
from usp_prof.record.session import session as plain_session

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def session(folder: str | Path, engine: DeepSpeedEngine, **options: Unpack[Options]) -> Session:
    """Record a loop around an engine, like `usp_prof.record.session`, with values filled in from the engine.

    With `sequence` (tokens per sample), the tokens per step follow from the engine's batch sizes.
    """
    layout = layout_of(engine)
    filled: Options = {"coordinates": layout.coordinates, **declared(engine, options.get("sequence", 0)), **options}
    return plain_session(folder, mesh=layout.mesh, groups=layout.groups, model=model_of(engine), **filled)


def step(session: Session, engine: DeepSpeedEngine) -> None:
    """Step the engine, and end the recorded step if its gradient accumulation is complete."""
    # After `engine.step()` the engine reports the next step's state.
    is_boundary = engine.is_gradient_accumulation_boundary()
    with phase("optimizer"):
        engine.step()
    if is_boundary:
        session.advance()


def layout_of(engine: DeepSpeedEngine) -> Layout:
    """Read the layout from the engine: pipeline stages, replicas, sequence (Ulysses) and tensor parallelism."""
    groups: dict[str | tuple[str, ...], Any] = {}
    sequence_parallel = int(engine.sequence_parallel_size)
    if sequence_parallel > 1:
        groups["cp"] = engine.seq_parallel_group
        groups["dp", "cp"] = engine.seq_data_parallel_group
        groups["dp"] = engine.data_parallel_group
    else:
        groups["dp"] = engine.seq_data_parallel_group  # ZeRO's own
    if int(engine.mp_world_size) > 1:
        groups["tp"] = engine.mpu.get_model_parallel_group()
    if (stages := int(getattr(engine, "num_stages", 1))) > 1:
        groups["pp"] = engine.mpu.get_pipe_parallel_group()
    sizes = {"pp": stages, "cp": sequence_parallel, "tp": int(engine.mp_world_size)}
    sizes["dp"] = dist.get_world_size() // (sizes["pp"] * sizes["cp"] * sizes["tp"])
    mesh = {axis: sizes[axis] for axis in ("pp", "dp", "cp", "tp")}  # outermost first
    coordinates = {axis: dist.get_rank(group) for axis, group in groups.items() if isinstance(axis, str)}
    return Layout(mesh, coordinates, groups)


def declared(engine: DeepSpeedEngine, sequence: int) -> Options:
    """Return the manifest fields from the engine's configuration."""
    accumulation = int(engine.gradient_accumulation_steps())
    options: Options = {
        "dtype": "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32",
        "zero_stage": int(engine.zero_optimization_stage()),
        "options": {"trainer": "deepspeed"},
    }
    if getattr(engine, "num_stages", 1) > 1:
        options["micro_batches"] = accumulation
    else:
        options["gradient_accumulation"] = accumulation
    if sequence:
        options["micro_batch_tokens"] = int(engine.train_micro_batch_size_per_gpu()) * sequence
        options["tokens_per_step"] = int(engine.train_batch_size()) * sequence
    return options
