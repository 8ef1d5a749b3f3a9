"""Timeline of a run: prepared once, stored next to the run's tables, opened through memory maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from usp_prof.tables.table_set import TableSet
from usp_prof.timeline import overlays, store
from usp_prof.timeline.store import TimelineStore


def open_timeline(tables: TableSet, progress: Callable[[int, int], None] | None = None) -> TimelineStore:
    """Open the timeline of all ranks, with overlay rows."""
    slices = _stored(tables, store.FORM, lambda folder: store.prepare(tables, folder, progress))
    over = _stored(tables, overlays.FORM, lambda folder: overlays.prepare(tables, folder, progress))
    return store.load(slices, tables.ranks, over)


def _stored(tables: TableSet, form: str, write: Callable[[Path], None]) -> Path:
    if tables.kept is not None:
        return tables.kept.derived(form, write)
    # Tables that were not read from files have no cache: the folder is deleted together with them.
    folder = Path(mkdtemp(prefix="usp-prof-"))
    finalize(tables, rmtree, folder, ignore_errors=True)
    write(folder)
    return folder
