"""How does a made-up run get onto disk? One Kineto file a rank, the manifest, and the truth beside them."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from usp_prof.contract import MANIFEST_NAME
from usp_prof.synth import gloo_layout, layout, nccl_layout
from usp_prof.synth.clocks import clocks
from usp_prof.synth.declaration import Style
from usp_prof.synth.manifest import manifest
from usp_prof.synth.simulation import simulate
from usp_prof.synth.truth import tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from usp_prof.synth.declaration import Declaration
    from usp_prof.synth.simulation import Simulation

TRUTH_NAME = "truth.json"
_LEVEL = 1


def write(run: Declaration, folder: Path, *, described: bool = True, compress: bool = True) -> list[Path]:
    """Write the run's traces and truth into a folder; without `described` there is no manifest."""
    simulation = simulate(run)
    folder.mkdir(parents=True, exist_ok=True)
    notes = manifest(simulation) if described else None
    if notes is not None:
        (folder / MANIFEST_NAME).write_text(_json(notes.to_dict()))
    (folder / TRUTH_NAME).write_text(_json(truth(simulation)))
    ending = ".json.gz" if compress else ".json"
    files = []
    for log, clock in zip(simulation.logs, clocks(run), strict=True):
        path = folder / f"rank{log.rank}.pt.trace{ending}"
        _save(path, trace(layout.Sheet(simulation, log, clock, notes)))
        files.append(path)
    return files


def trace(sheet: layout.Sheet) -> Iterator[str]:
    """Give one rank's file as text."""
    yield from layout.header(sheet)
    style = sheet.simulation.run.style
    yield from (nccl_layout if style is Style.NCCL else gloo_layout).events(sheet)
    yield from layout.footer(sheet)


def truth(simulation: Simulation) -> dict[str, Any]:
    """Give the truth as it is written beside the traces."""
    offsets = {str(rank): asdict(clock) for rank, clock in enumerate(clocks(simulation.run))}
    return {"declaration": simulation.run.to_dict(), "clocks": offsets, **tell(simulation).to_dict()}


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1) + "\n"


def _save(path: Path, pieces: Iterator[str]) -> None:
    if path.suffix == ".gz":
        # No name and no time in the header: the same run gives the same bytes.
        with path.open("wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, 0) as packed:
            for piece in pieces:
                packed.write(piece.encode())
        return
    with path.open("w") as plain:
        plain.writelines(pieces)
