"""Recordings in other tools: they follow the Chrome trace format as Perfetto reads it, and HTA opens them."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = sorted((Path(__file__).parents[2] / "traces").glob("recorded-*"))
PHASES = {"X", "i", "s", "f", "M"}
"""Complete, instant, flow begins, flow ends, metadata: what Kineto writes."""


def rank_of(path: Path) -> int:
    return int(path.name.removeprefix("rank").removesuffix(".json.gz"))


def traces(run: Path) -> list[Path]:
    return sorted(run.glob("rank*.json.gz"), key=rank_of)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


RULES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "phase": lambda event: event.get("ph") in PHASES,
    "name": lambda event: isinstance(event.get("name"), str),
    "arguments": lambda event: isinstance(event.get("args", {}), dict),
    "process": lambda event: isinstance(event.get("pid"), int | str),
    "thread": lambda event: isinstance(event.get("tid"), int | str),
    "time": lambda event: is_number(event.get("ts")),
    "duration": lambda event: event.get("ph") != "X" or (is_number(event.get("dur")) and event["dur"] >= 0),
    "flow": lambda event: event.get("ph") not in {"s", "f"} or "id" in event,
}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_recorded_trace_follows_the_format(run: Path) -> None:
    for path in (traces(run)[0], traces(run)[-1]):
        trace = msgspec.json.decode(gzip.decompress(path.read_bytes()))  # strict: no NaN, nothing after the end
        events = trace["traceEvents"]
        assert len(events) > 1000
        assert Counter(name for name, keeps_rule in RULES.items() for event in events if not keeps_rule(event)) == {}
        assert {"distributedInfo", "baseTimeNanoseconds", "schemaVersion", "usp_prof"} <= set(trace)
        assert trace["distributedInfo"]["rank"] == rank_of(path)
        flows = Counter((event["ph"], event["id"], event.get("cat")) for event in events if event["ph"] in {"s", "f"})
        assert all(("s", number, kind) in flows for phase, number, kind in flows if phase == "f")


@pytest.mark.skipif(find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed")
@pytest.mark.filterwarnings("default")
def test_hta_reads_every_event_of_a_recorded_run() -> None:
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 - pandas and more, where it is there

    run = RUNS[0]
    analysis = TraceAnalysis(trace_files={rank_of(path): str(path) for path in traces(run)}, trace_dir=str(run))
    assert sorted(analysis.t.traces) == list(range(len(traces(run))))
    for path in traces(run):
        events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
        timed = [event for event in events if event["ph"] == "X" and event.get("cat") not in {None, "Trace"}]
        assert len(analysis.t.traces[rank_of(path)]) == len(timed)
