"""Megatron-Core: `with megatron.session("traces/my-run", model=config, sequence=4096) as session:` in `train()`.

End each step with `session.advance()`, at the place of `prof.step()` in `megatron/training/training.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import torch.distributed as dist
from megatron.core import num_microbatches_calculator, parallel_state

from usp_prof.record.adapters.fsdp2 import Layout
from usp_prof.record.options import Options
from usp_prof.record.session import Session
from usp_prof.record.session import session as plain_session


def session(folder: str | Path, *, model: object = None, **options: Unpack[Options]) -> Session:
    """Record Megatron's loop, like `usp_prof.record.session`, with values filled in from `parallel_state`.

    With `sequence`, the tokens per step follow from Megatron's batch sizes.
    """
    layout = layout_now()
    filled: Options = {"coordinates": layout.coordinates, **batch_sizes(options.get("sequence", 0)), **options}
    return plain_session(folder, mesh=layout.mesh, groups=layout.groups, model=model, **filled)


def layout_now() -> Layout:
    """Read the layout from `parallel_state`: one group per axis; groups over products of axes are omitted."""
    groups: dict[str | tuple[str, ...], Any] = {
        "pp": parallel_state.get_pipeline_model_parallel_group(),
        "dp": parallel_state.get_data_parallel_group(),
        "cp": parallel_state.get_context_parallel_group(),
        "tp": parallel_state.get_tensor_model_parallel_group(),
    }
    # Outermost first; expert parallelism uses the ranks of other axes, so it is no dimension of the mesh.
    mesh = {str(axis): dist.get_world_size(group) for axis, group in groups.items()}
    coordinates = {str(axis): dist.get_rank(group) for axis, group in groups.items()}
    experts = parallel_state.get_expert_model_parallel_group()
    if dist.get_world_size(experts) > 1:
        groups["ep"] = experts
        coordinates["ep"] = dist.get_rank(experts)
    if mesh["cp"] == 1:
        # Gradients are reduced over "data with context", which here is another group of the same ranks.
        groups["dp"] = [groups["dp"], parallel_state.get_data_parallel_group(with_context_parallel=True)]
    return Layout(mesh, coordinates, groups)


def batch_sizes(sequence: int) -> Options:
    """Return micro-batches per step and, with a sequence length, tokens; empty if Megatron has no sizes."""
    try:
        sizes: Options = {"micro_batches": int(num_microbatches_calculator.get_num_microbatches())}
    except AttributeError:  # the calculator does not exist: the loop uses Megatron-Core only
        return {}
    if sequence:
        sizes["micro_batch_tokens"] = int(num_microbatches_calculator.get_micro_batch_size()) * sequence
        sizes["tokens_per_step"] = int(num_microbatches_calculator.get_current_global_batch_size()) * sequence
    return sizes
