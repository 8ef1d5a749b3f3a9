"""Documents for tests of the report: small ones, with every kind of block."""

from __future__ import annotations

from typing import Any

import numpy as np

from usp_prof.charts.inputs import BreakdownRows, Part
from usp_prof.findings.causes import Cause
from usp_prof.model.finding import Basis, Finding, Level
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.report.document import (
    Chart,
    DataTable,
    Document,
    Findings,
    Health,
    KeyFigure,
    KeyFigures,
    Section,
    Stack,
    StackPart,
    TableColumn,
    Text,
)
from usp_prof.report.run_facts import RunFacts

FINDING = Finding(
    "ST001",
    "Rank 6 arrives last at tp collectives",
    {"rank": 6, "axis": "tp"},
    {"late_ns": 1_200_000},
    "slow_rank=6",
    0.098,
    0.12,
    Basis.REPLAYED,
    0.015,
    Level.CRITICAL,
    "Look at the clocks of that GPU.",
)
HEALTH = (
    HealthRow("truncated", Severity.DATA_LOSS, 3, 1, "ends inside an event: 12,345 bytes lost", "rank3.json"),
    HealthRow("no_groups", Severity.INFO, -1, 2, "no group is described"),
)
STEP_TIME = Metric("step_time", Unit.NS, Better.LOWER, "Step time", "A step.", ("rank", "step"))
VALUES = (Value(STEP_TIME, 431_000_000), Value(STEP_TIME, 430_000_000, {"step": 3, "rank": 0}))
HOSTILE = "</script><b>\x1b[31m*_`|x\n"


def facts(**changed: Any) -> RunFacts:
    """Make the facts of a run."""
    fields: dict[str, Any] = {
        "name": "a run",
        "ranks": tuple(range(8)),
        "world_size": 8,
        "axes": {"tp": 8},
        "axes_inferred": False,
        "steps": (3, 4, 5),
        "step_source": "profiler_step",
        "devices": ("NVIDIA A100",),
        "hosts": 1,
    }
    return RunFacts(**fields | changed)


STACK = Stack(
    "Where the step goes",
    431_000_000,
    Unit.NS,
    (
        StackPart("compute", "compute", 250_000_000),
        StackPart("exposed tp", "comm:tp", 100_000_000),
        StackPart("exposed dp", "comm:dp", 31_000_000),
        StackPart("memcpy", "memcpy", 0),
        StackPart("bubble", "idle:bubble", 50_000_000),
    ),
)
TABLE = DataTable(
    "By axis",
    (TableColumn("axis"), TableColumn("total", Unit.NS), TableColumn("overlap", Unit.FRACTION), TableColumn("rank")),
    (("tp", 130_123_456, 0.231, 1), ("dp", 60_000_000, None, 2), (HOSTILE, None, 0.5, None)),
    more=3,
)
FIGURES = KeyFigures(
    (
        KeyFigure("step", 431_000_000, Unit.NS, "428 ms to 433 ms"),
        KeyFigure("MFU", None, Unit.FRACTION, "unknown: add --model"),
    )
)
CHART = Chart("By rank", BreakdownRows(("rank 0", "rank 1"), (Part("compute", "compute", (1e6, 2e6)),)))


def document(**changed: Any) -> Document:
    """Make a document with every kind of block."""
    fields: dict[str, Any] = {
        "version": "0",
        "run": facts(),
        "metrics": {"step_time": STEP_TIME},
        "values": VALUES,
        "findings": (FINDING,),
        "health": HEALTH,
        "summary": Section(
            "summary", "Summary", (FIGURES, STACK, TABLE, Findings((Cause(FINDING),), 2, 1), Health(HEALTH[:1], 1))
        ),
        "sections": (
            Section("breakdown", "Where the step goes", (STACK, CHART, Text("It goes."))),
            Section("timeline", "Timeline", (Text("Wheel zooms.", quiet=True), CHART)),
            Section("health", "Health of the traces", (Health(HEALTH),)),
        ),
    }
    return Document(**fields | changed)


def empty_document() -> Document:
    """Make an empty document."""
    blocks = (Findings(()), Health(()), Health((), 4))
    return document(findings=(), health=(), values=(), summary=Section("summary", "Summary", blocks), sections=())


GRID = np.array([[1.0, 2.0], [1.1, np.nan]])
