"""What would the recorder have noted about the made-up run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.contract import GroupEntry, Manifest, ModelEntry
from usp_prof.synth.clocks import clocks
from usp_prof.synth.declaration import Style
from usp_prof.synth.mesh import AXES

if TYPE_CHECKING:
    from usp_prof.synth.simulation import Simulation


def manifest(simulation: Simulation) -> Manifest:
    """Write the run's manifest."""
    run, topology = simulation.run, simulation.topology
    mesh, shape = run.mesh, run.shape
    sizes = {"pp": mesh.pp, "dp": mesh.dp, "cp": mesh.cp, "tp": mesh.tp, "ep": mesh.ep}
    by_rank = dict(enumerate(clocks(run)))
    tokens = run.work.micro_batches * shape.sequence
    return Manifest(
        name=run.name,
        mesh={axis: size for axis, size in sizes.items() if size > 1},
        axis_order=[axis for axis in AXES if sizes[axis] > 1],
        coordinates={str(rank): topology.coordinates(rank) for rank in range(mesh.world)},
        groups=[
            GroupEntry(group.name, list(group.ranks), [group.axis], group.description) for group in topology.groups
        ],
        stages={
            str(rank): sorted({action.stage for action in simulation.orders[topology.coordinates(rank)["pp"]]})
            for rank in range(mesh.world)
        },
        schedule=run.work.schedule if mesh.pp > 1 else "",
        micro_batches=run.work.micro_batches,
        gradient_accumulation=1 if mesh.pp > 1 else run.work.micro_batches,
        tokens_per_step=tokens * mesh.dp,
        micro_batch_tokens=shape.sequence,
        model=ModelEntry(
            name=run.name, layers=shape.layers, hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads,
            head_dim=shape.hidden // shape.heads, ffn_hidden=shape.ffn_hidden, vocab=shape.vocab,
            sequence=shape.sequence, experts=shape.experts,
            experts_per_token=shape.experts_per_token if shape.experts else 0,
        ),
        dtype="bfloat16" if run.style is Style.NCCL else "float32",
        recompute="full" if run.work.recompute else "none",
        zero_stage=run.work.zero_stage,
        device=run.speed.device if run.style is Style.NCCL else "",
        devices_per_node=run.clocks.ranks_per_host,
        hosts={str(rank): f"host{clock.host}" for rank, clock in by_rank.items()},
        faults=[{"kind": str(fault.kind), "rank": fault.rank, "step": fault.step} for fault in run.faults],
        options={"synthetic": True},
    )  # fmt: skip
