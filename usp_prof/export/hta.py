"""HolisticTraceAnalysis: its `TraceAnalysis` for a run that was read here.

HTA's constructors always parse files. Its classes also accept frames, which are filled here: one frame per rank, with
whole nanoseconds, every kernel, and the links of the tables. Two things differ from HTA's own reading on purpose. Host
ops that name a stream (Triton's launchers) are not device work. Synchronization events are device work only with
`synchronisation=True`, which HTA's critical path needs and its time breakdown does not.

Whatever HTA reads from the files again (counters in a trace, overlays, kernel sequences) does not work with frames. The
package is `traceinsight` on PyPI, `HolisticTraceAnalysis` before 0.6; both are imported as `hta`, so install only one.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup
from usp_prof.columns.table import Columns
from usp_prof.inputs.trace_record import DEVICE_WORK
from usp_prof.model.errors import UsageError
from usp_prof.model.schema import Kind
from usp_prof.tables.events.arguments import Field, read_arguments
from usp_prof.tables.table_set import TableSet

_FIELDS = (
    Field("bytes", "bytes"),
    Field("memory_bw_gbps", "memory bandwidth (GB/s)", Kind.FLOAT),
    Field("wait_on_stream", "wait_on_stream"),
    Field("wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_record_corr_id"),
)
_LEFT_OUT = ("Trace", "overhead", "cpu_instant_event", "")
_DEVICE_TYPES = {"cuda": "NVIDIA GPU", "rocm": "AMD GPU", "mtia": "MTIA"}  # as in HTA
_MISSING = "HolisticTraceAnalysis is not installed"


def to_hta(tables: TableSet, ranks: Iterable[int] | None = None, *, synchronisation: bool = False) -> Any:  # noqa: ANN401
    """Return HTA's `TraceAnalysis` for the ranks (all without `ranks`), without reading a file."""
    if find_spec("hta") is None:
        raise UsageError(_MISSING, hint="pip install 'usp-prof[hta]' (installs traceinsight, its name since 0.6)")
    from hta.common.trace import Trace  # noqa: PLC0415 - an optional extra
    from hta.common.trace_symbol_table import TraceSymbolTable  # noqa: PLC0415
    from hta.configs.parser_config import ParserConfig  # noqa: PLC0415
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415

    chosen = tables.ranks if ranks is None else tuple(ranks)
    symbols = TraceSymbolTable()
    read = {rank: _columns(tables, rank, synchronisation=synchronisation) for rank in chosen}
    first = min((int(columns["start"].min()) for columns in read.values() if len(columns["start"])), default=0)
    trace = Trace.__new__(Trace)
    trace.trace_path, trace.trace_files = "", {}
    trace.symbol_table = symbols
    trace.traces = {rank: _frame(columns, symbols, first) for rank, columns in read.items()}
    kinds = {rank: str(tables.columns("ranks", rank)["device_kind"][0]) for rank in chosen}
    trace.meta_data = {rank: {"device_type": _DEVICE_TYPES.get(kind, "UNKNOWN")} for rank, kind in kinds.items()}
    trace.min_ts = first / 1000
    trace.is_parsed = True
    trace.parser_config = ParserConfig.get_default_cfg()
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = trace
    return analysis


def _columns(tables: TableSet, rank: int, *, synchronisation: bool) -> dict[str, Any]:
    """Return the contents of HTA's frames as arrays by event."""
    events = tables.columns("events", rank)
    exported_rows = np.flatnonzero(events.matches("phase", "X") & ~events.matches("category", *_LEFT_OUT))
    chosen = events.take(exported_rows)
    device = chosen.matches("category", *DEVICE_WORK, *(("cuda_sync",) if synchronisation else ()))
    args = read_arguments(chosen.arrow.column("args"), np.arange(len(chosen)), _FIELDS)
    start = chosen["start_ns"]
    return args | {
        "index": chosen["event"],
        "name": chosen.codes("name"),
        "cat": chosen.codes("category"),
        "pid": _numbers(chosen, "process"),
        "tid": _numbers(chosen, "thread"),
        "stream": np.where(device, np.maximum(chosen["stream"], 0), -1),
        "correlation": chosen["correlation"],
        "external_id": chosen["external_id"],
        "start": start,
        "dur": np.maximum(chosen["dur_ns"], 0),
        "index_correlation": _partners(tables, rank, chosen["event"]),
        "iteration": _iterations(tables, rank, chosen["event"], start, device=device),
    }


def _numbers(events: Columns, name: str) -> Ints:
    """Return process or thread as the integers that HTA's queries need; other names are numbered down from -2."""
    codes, values = events.codes(name)
    plain = [
        int(text) if text.lstrip("-").isdigit() and len(text) < 19 else -2 - place for place, text in enumerate(values)
    ]
    return lookup(plain, codes, missing=-1)


def _partners(tables: TableSet, rank: int, event: Ints) -> Ints:
    """Return the launch of each kernel and the first kernel of each launch; 0 without a launch in the trace."""
    kernels = tables.columns("kernels", rank)
    partner = np.full(int(event.max(initial=-1)) + 2, -1, np.int64)
    launch, work = kernels["launch_event"], kernels["event"]
    partner[work] = np.where(launch >= 0, launch, 0)
    linked = launch >= 0
    partner[launch[linked][::-1]] = work[linked][::-1]  # sorted by start: keep the first kernel
    return partner[event]


def _iterations(tables: TableSet, rank: int, event: Ints, start: Ints, *, device: Flags) -> Ints:
    """Return the step as HTA counts it: host events by their step mark, device work by that of its launch."""
    steps = tables.columns("steps", rank)
    if not len(steps) or steps["source"][0] == "window":
        return np.full(len(event), -1, np.int64)
    kernels = tables.columns("kernels", rank)
    place_of = np.zeros(int(event.max(initial=0)) + 2, np.int64)
    place_of[event] = start
    launched = np.full(len(place_of), -1, np.int64)
    launch = kernels["launch_event"]
    launched[kernels["event"]] = np.where(launch >= 0, place_of[launch], -1)
    moment = np.where(device, launched[event], start)
    place = np.searchsorted(steps["host_start_ns"], moment, side="right") - 1
    inside = (place >= 0) & (moment < steps["host_end_ns"][np.maximum(place, 0)])
    return np.where(inside, steps["step"][np.maximum(place, 0)], -1)


def _frame(columns: dict[str, Any], symbols: Any, first: int) -> Any:  # noqa: ANN401 - pandas' and HTA's own types
    """Build one rank's frame: texts as symbol numbers, times in microseconds from the run's first event."""
    import pandas as pd  # noqa: PLC0415 - HTA brings it

    coded = {}
    for name in ("name", "cat"):
        codes, values = columns[name]
        used = np.unique(codes).tolist()
        symbols.add_symbols([values[code] for code in used])
        ids = symbols.get_sym_id_map()
        table = np.full(len(values) + 1, -1, np.int64)
        table[used] = [ids[values[code]] for code in used]
        coded[name] = table[codes]
    ts = (columns["start"] - first) / 1000
    dur = columns["dur"] / 1000
    plain = {key: columns[key] for key in columns if key not in ("name", "cat", "start", "dur")}
    frame = pd.DataFrame({**plain, **coded, "ts": ts, "dur": dur, "end": ts + dur, "num_kernels": 0})
    return frame.set_index("index", drop=False).rename_axis(None)
