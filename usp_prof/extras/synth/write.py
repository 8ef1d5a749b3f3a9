"""Write one Kineto file per rank, the manifest, and the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from usp_prof.contract import MANIFEST_NAME, GroupEntry, Manifest, ModelEntry
from usp_prof.extras.synth import gloo_layout, layout, nccl_layout
from usp_prof.extras.synth.declaration import Declaration, Style
from usp_prof.extras.synth.mesh import AXES, clocks
from usp_prof.extras.synth.simulation import Simulation, ground_truth
from usp_prof.model.errors import UsageError
from usp_prof.model.files import check_name
from usp_prof.whole_files import whole_file, whole_gzip_file

# Manifest: the recorder's data on the run.


def manifest(simulation: Simulation) -> Manifest:
    """Return the run's manifest."""
    run, topology = simulation.run, simulation.topology
    mesh, shape = run.mesh, run.shape
    sizes = {axis: getattr(mesh, axis) for axis in (*AXES, "ep")}
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


TRUTH_NAME = "truth.json"


def write(run: Declaration, folder: Path, *, described: bool = True, compress: bool = True) -> list[Path]:
    """Write the run's traces and truth into a folder; without `described` there is no manifest."""
    check_name(folder, "name another folder")
    simulation = Simulation(run)
    ending = ".json.gz" if compress else ".json"
    files = [folder / f"rank{log.rank}.pt.trace{ending}" for log in simulation.logs]
    if leftover := sorted({*folder.glob("rank*.pt.trace.json*")} - {*files}):
        raise UsageError(
            f"{folder} has traces of a run with other ranks, such as {leftover[0].name}", hint="name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    notes = manifest(simulation) if described else None
    if notes is not None:
        _save(folder / MANIFEST_NAME, iter([_json(notes.to_dict())]))
    _save(folder / TRUTH_NAME, iter([_json(truth(simulation))]))
    for path, log, clock in zip(files, simulation.logs, clocks(run), strict=True):
        _save(path, trace(layout.Sheet(simulation, log, clock, notes)))
    return files


def trace(sheet: layout.Sheet) -> Iterator[str]:
    """Yield one rank's file as text."""
    yield from layout.header(sheet)
    style = sheet.simulation.run.style
    yield from (nccl_layout if style is Style.NCCL else gloo_layout).events(sheet)
    yield from layout.footer(sheet)


def truth(simulation: Simulation) -> dict[str, Any]:
    """Return the truth as written next to the traces."""
    offsets = {str(rank): asdict(clock) for rank, clock in enumerate(clocks(simulation.run))}
    return {"declaration": simulation.run.to_dict(), "clocks": offsets, **ground_truth(simulation).to_dict()}


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1) + "\n"


def _save(path: Path, pieces: Iterator[str]) -> None:
    with whole_gzip_file(path, level=1) if path.suffix == ".gz" else whole_file(path) as file:
        file.writelines(piece.encode() for piece in pieces)
