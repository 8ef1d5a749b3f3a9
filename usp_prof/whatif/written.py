"""Predicted runs on disk: a trace for each rank and a manifest, which every command reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from usp_prof.contract import MANIFEST_NAME, TRACE_METADATA_KEY
from usp_prof.export.merged_trace import write_rank
from usp_prof.model.errors import UsageError
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


def write_run(tables: TableSet, folder: Path, metadata: Mapping[int, Mapping[str, Any]]) -> None:
    """Write all ranks; `metadata` has the top-level fields of the recorded files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="name a new folder with -o, or a file such as what.json.gz")
    folder.mkdir(parents=True, exist_ok=True)
    for rank in tables.ranks:
        own = dict(metadata.get(rank, {}))
        info = own.get("distributedInfo")
        if not isinstance(info, dict):
            own["distributedInfo"] = {"rank": rank, "world_size": len(tables.ranks)}
        own.pop(TRACE_METADATA_KEY, None)
        write_rank(tables, rank, folder / f"rank{rank}.json.gz", own)
    if tables.manifest is not None:
        with whole_file(folder / MANIFEST_NAME) as file:
            file.write(json.dumps(tables.manifest.to_dict(), indent=1).encode())
