"""Runs without marks: copies of another run's traces without some annotations."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

MARKS = re.compile(r"(pp|train)::|PP:|(Forward|Backward) \d|Optimizer")


def without_marks(run: Path, folder: Path, marks: re.Pattern[str] = MARKS) -> TableSet:
    """Copy the ranks' traces without the marks, and without the manifest, and read them."""
    folder.mkdir()
    for path in sorted(run.glob("rank*.json*")):
        packed = path.suffix == ".gz"
        trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        trace["traceEvents"] = [event for event in trace["traceEvents"] if not _is_mark(event, marks)]
        trace.pop("usp_prof", None)
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(trace), encoding="utf-8")
    return open_run(folder, cache_dir=folder.parent / "unmarked-cache").tables


def _is_mark(event: dict[str, Any], marks: re.Pattern[str]) -> bool:
    return event.get("cat") in {"user_annotation", "gpu_user_annotation"} and bool(marks.match(str(event.get("name"))))
