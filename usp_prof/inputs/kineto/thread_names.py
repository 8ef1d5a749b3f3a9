"""Names of processes and threads, collected from a trace's metadata events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import texts_of
from usp_prof.inputs.argument_decoder import object_in
from usp_prof.inputs.growing import plain_text
from usp_prof.inputs.kineto import wire
from usp_prof.inputs.trace_record import THREADS, to_table

_INT64 = 1 << 63


@dataclass(slots=True)
class ThreadNames:
    """Collector of `process_name`, `process_labels`, `thread_name` and `thread_sort_index` events."""

    _processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _threads: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, events: Iterable[wire.Event | wire.ExactEvent | wire.Metadata]) -> None:
        """Add metadata events; later ones replace earlier ones, as in the viewers."""
        for event in events:
            process, thread = plain_text(event.pid), plain_text(event.tid)
            arguments = object_in(event.args)
            if event.name in {"process_name", "process_labels", "process_sort_index"}:
                row = self._processes.setdefault(process, {})
                if event.name == "process_labels":
                    row["process_labels"] = plain_text(arguments.get("labels"))
                elif event.name == "process_name":
                    row["process_name"] = plain_text(arguments.get("name"))
            elif event.name == "thread_name":
                self._threads.setdefault((process, thread), {})["thread_name"] = plain_text(arguments.get("name"))
            elif event.name == "thread_sort_index":
                self._threads.setdefault((process, thread), {})["sort_index"] = _index(arguments.get("sort_index"))

    def table(self) -> pa.Table:
        """Return one row per thread; a process without threads has one row with an empty thread."""
        alone = set(self._processes) - {process for process, _ in self._threads}
        keys = sorted([*self._threads, *((process, "") for process in alone)])
        rows = [
            {"process": p, "thread": t, **self._processes.get(p, {}), **self._threads.get((p, t), {})} for p, t in keys
        ]
        texts = ("process", "thread", "process_name", "process_labels", "thread_name")
        columns: dict[str, Any] = {name: texts_of([row.get(name, "") for row in rows]) for name in texts}
        columns["sort_index"] = np.array([row.get("sort_index", -1) for row in rows], np.int64)
        return to_table(THREADS, columns, len(rows))


def _index(value: object) -> int:
    if isinstance(value, float) and abs(value) < _INT64:
        return int(value)
    if isinstance(value, bool):
        return -1
    return value if isinstance(value, int) and -_INT64 <= value < _INT64 else -1
