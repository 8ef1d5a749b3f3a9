"""What did the recorder say about the run? `run.json` beside the traces, or the same text inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from usp_prof.contract import MANIFEST_NAME, Manifest
from usp_prof.model.health import HealthRow, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def find_manifest(folders: Iterable[Path]) -> Path | None:
    """Find the nearest `run.json` that is a manifest, looking into the folders in order."""
    return next((path for folder in folders if (path := folder / MANIFEST_NAME).is_file()), None)


def read_manifest(path: Path) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    """Read `run.json`; one that cannot be used is a row of health."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, (_broken(str(path), str(error)),)
    return manifest_from(data, str(path))


def manifest_from(data: Any, origin: str) -> tuple[Manifest | None, tuple[HealthRow, ...]]:  # noqa: ANN401 - any JSON
    """Make a manifest of parsed JSON (or of JSON text inside JSON, as old recorders wrote it)."""
    try:
        if isinstance(data, str):
            data = msgspec.json.decode(data)
        if not isinstance(data, dict):
            return None, (_broken(origin, "it is no object"),)
        manifest = Manifest.from_dict(data)
        checked = msgspec.convert(msgspec.to_builtins(manifest), Manifest, strict=False)
    except (TypeError, ValueError, KeyError, AttributeError, msgspec.DecodeError, RecursionError) as error:
        return None, (_broken(origin, str(error)),)
    return checked, ()


def _broken(origin: str, why: str) -> HealthRow:
    detail = f"the manifest cannot be used ({why}): mesh, model and schedule are taken from the trace alone"
    return HealthRow("broken_manifest", Severity.ERROR, detail=detail, file=origin)
