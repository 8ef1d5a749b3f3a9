"""How does one rank's trace get onto the disk: exported by Kineto, joined with its groups, compressed, whole?"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.record.atomic import whole_gzip_file

if TYPE_CHECKING:
    import torch

    from usp_prof.contract import Manifest

_CHUNK = 1 << 22


def trace_name(rank: int) -> str:
    """Give the file name of a rank's trace."""
    return f"rank{rank}.json.gz"


def metadata_text(manifest: Manifest) -> str:
    """Write the manifest as the value of the trace's metadata key, so that a lone file says what it is."""
    return json.dumps(manifest.to_dict())


def preset(profiler: torch.profiler.profile, manifest: Manifest) -> None:
    """Leave the manifest with the profiler before it starts; later additions are silently dropped by Kineto."""
    profiler.preset_metadata_json(TRACE_METADATA_KEY, metadata_text(manifest))


def export(profiler: torch.profiler.profile, path: Path) -> None:
    """Write the recorded window to `path`; either the whole trace stands there afterwards or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent) as folder:
        raw = Path(folder) / "raw.json"
        profiler.export_chrome_trace(str(raw))
        with raw.open("rb") as source, whole_gzip_file(path) as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
