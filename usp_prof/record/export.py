"""How does one rank's trace get onto the disk: exported by Kineto, joined with its groups, compressed, whole?"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.contract import TRACE_METADATA_KEY, format_mark
from usp_prof.record import flight
from usp_prof.record.enrichment import enrich
from usp_prof.record.trace_text import ENCODING, with_metadata
from usp_prof.whole_files import whole_gzip_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from usp_prof.contract import GroupEntry, Manifest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the join: the share of gloo collectives that were given their group, and what is wrong."""

    join_rate: float
    note: str = ""


def trace_name(rank: int) -> str:
    """Give the file name of a rank's trace."""
    return f"rank{rank}.json.gz"


def metadata(manifest: Manifest) -> tuple[str, str]:
    """Give what a profiler has to be told before it starts: Kineto silently drops what is added later."""
    return TRACE_METADATA_KEY, _text(manifest)


def export(
    profiler: torch.profiler.profile,
    path: Path,
    manifest: Manifest,
    groups: list[GroupEntry],
    rank: int,
    *,
    cut_steps: Iterable[int] = (),
) -> Outcome:
    """Write the recorded window to `path`; either the whole trace stands there afterwards or nothing.

    A step that an error cut short keeps its events but not its name, for it is no step: ``train::cut step=N``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent) as folder:
        raw = Path(folder) / "raw.json"
        profiler.export_chrome_trace(str(raw))
        text = raw.read_text(ENCODING)
    for step in cut_steps:
        text = text.replace(f'"ProfilerStep#{step}"', f'"{format_mark("train", "cut", step=step)}"')
    pieces, outcome = _joined(text, groups, rank)
    manifest.join_rate = {str(rank): outcome.join_rate}
    head, *rest = pieces
    with whole_gzip_file(path) as file:
        for piece in (with_metadata(head, TRACE_METADATA_KEY, _text(manifest)), *rest):
            file.write(piece.encode(ENCODING))
    return outcome


def _joined(text: str, groups: list[GroupEntry], rank: int) -> tuple[Iterable[str], Outcome]:
    try:
        entries = flight.recorded()
        enriched = enrich(text, entries or [], groups, rank)
    except Exception as error:  # noqa: BLE001 - a heuristic over private formats; the plain trace is worth keeping
        return [text], Outcome(0.0, f"the join of groups failed, the trace is as Kineto wrote it: {error!r}")
    lost = enriched.collectives - enriched.recognised
    if not lost:
        return enriched.pieces, Outcome(enriched.rate)
    said = f"{lost} of {enriched.collectives} gloo collectives have no group and count to no axis"
    return enriched.pieces, Outcome(enriched.rate, f"{said}: {_reason(entries)}")


def _reason(entries: list[flight.FlightEntry] | None) -> str:
    if entries is None:
        return "this torch has no flight recorder"
    if not entries:
        return "call usp_prof.record.prepare() before init_process_group (it sets TORCH_FR_BUFFER_SIZE)"
    return "they match no entry of the flight recorder; if its ring was too short, raise prepare(entries=...)"


def _text(manifest: Manifest) -> str:
    return json.dumps(manifest.to_dict())
