"""Bodies of the small programs that measure reading; `path` and `cache` are inputs, `events` is the result.

Imports happen before the clock starts, for us as for others. Arrow loads pandas with its first number, so that is also
done before. All of it counts in the peak memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    """Imports before the clock starts, and the code to measure."""

    imports: str
    code: str


_OURS = "import duckdb, pyarrow, pyarrow.parquet, usp_prof.run\npyarrow.scalar(0)"

BARE = Body(
    "import msgspec",
    """
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
class Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]
events = len(msgspec.json.decode(open(path, "rb").read(), type=Trace).traceEvents)
""",
)
EVENTS = Body(
    _OURS,
    """
from pathlib import Path
from usp_prof.inputs.kineto.reader import read
events = read(Path(path)).events.num_rows
""",
)
TABLES = Body(
    _OURS,
    """
from pathlib import Path
from usp_prof.store.load import build
tables, _ = build(Path(path), 0, None)
for table in tables.values():
    for _ in table.parts(1 << 17) if hasattr(table, "parts") else ():
        pass
events = tables["events"].num_rows
""",
)
COLD = Body(
    _OURS,
    """
import tempfile
from usp_prof import open_run
with tempfile.TemporaryDirectory() as folder:
    run = open_run(path, cache_dir=folder)
    events = run.query("SELECT sum(events) FROM ranks").fetchall()[0][0]
    stop()
    from pathlib import Path
    import pyarrow.parquet as pq
    for file in Path(folder).rglob("*.parquet"):
        schema, rows = pq.read_schema(file), pq.read_metadata(file).num_rows
        widths = [8 if f.type.bit_width == 64 else 4 for f in map(lambda f: f if not hasattr(f.type, "index_type")
                  else f.with_type(f.type.index_type), schema) if f.name != "args"]
        extra += rows * sum(widths)
""",
)
RANKS = Body(
    _OURS,
    """
import tempfile
from usp_prof import open_run
with tempfile.TemporaryDirectory() as folder:
    run = open_run(path, cache_dir=folder)
    stop()
    events = run.query("SELECT sum(events) FROM ranks").fetchall()[0][0]
""",
)
WARM = Body(
    _OURS,
    """
from usp_prof import open_run
run = open_run(path, cache_dir=cache)
events = run.table("kernels").df().shape[0]
""",
)
IMPORT = Body("", "import usp_prof\nevents = 0")
HTA = Body(
    "from hta.common import trace as _",
    """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace import Trace
trace = Trace(trace_files={0: path}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
trace.decode_symbol_ids(use_shorten_name=False)
events = len(trace.get_trace(0))
""",
)
OURS = {"bare": BARE, "events": EVENTS, "tables": TABLES, "cold": COLD, "warm": WARM}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
