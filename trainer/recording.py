"""What does the recorder have to be told about this run?"""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from trainer.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.settled import Settled
from usp_prof import record


def open_session(settled: Settled, mesh: Mesh, faults: Faults) -> record.Session:
    """Open the recording of this run; all ranks agree on its folder."""
    options, layout, axes = settled.options, settled.layout, settled.layout.axes()
    return record.session(
        folder_of(settled),
        mesh=axes,
        model=settled.shape.entry(),
        groups=served(mesh),
        coordinates={axis: mesh.place[axis] for axis in axes},
        stages=settled.held(mesh.place["pp"]),
        skip=options.profile_skip,
        wait=0,
        warmup=1,
        active=options.profile_steps,
        memory=options.profile_memory,
        name=layout.title(),
        schedule=settled.schedule,
        micro_batches=options.micro_batches,
        gradient_accumulation=options.accumulate,
        tokens_per_step=settled.tokens,
        micro_batch_tokens=settled.micro_batch * settled.shape.sequence,
        recompute=options.recompute,
        dtype=settled.compute,
        zero_stage=options.zero,
        paced=bool(options.pace),
        faults=faults.truth(),
        options=options.changed(),
    )


def served(mesh: Mesh) -> dict[tuple[str, ...], list[dist.ProcessGroup]]:
    """Sort this rank's groups by the axes that they serve; several may serve the same."""
    groups: dict[tuple[str, ...], list[dist.ProcessGroup]] = {}
    for group in mesh.open_groups():
        groups.setdefault(group.axes, []).append(group.handle)
    return groups


def folder_of(settled: Settled) -> Path:
    """Choose the run's folder; rank 0 reads the clock for all."""
    if settled.options.output:
        return Path(settled.options.output)
    name = [f"{time.strftime('%Y%m%d-%H%M%S')}-{settled.layout.title()}"]
    if settled.layout.world > 1:
        dist.broadcast_object_list(name)
    return Path("traces") / name[0]
