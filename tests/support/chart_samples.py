"""One small input for each chart."""

from __future__ import annotations

import numpy as np

from usp_prof.charts import inputs
from usp_prof.model.metric import Unit
from usp_prof.report.sections.timeline import Slices, levels

_ROWS = np.array([0, 1, 0, 1], np.int64)
_START = np.array([0, 10, 120, 130], np.int64) * 1_000_000
_CODES = np.array([0, 1, 0, 1], np.int64)
_LEVELS, _STARTS = levels(Slices(_ROWS, _START, _START + 90_000_000, _CODES, _CODES), 1000)

SAMPLES: tuple[inputs.ChartInput, ...] = (
    inputs.BreakdownRows(
        ("rank 0", "rank 1"),
        (
            inputs.Part("compute", "compute", (5e6, 6e6)),
            inputs.Part("exposed tp", "comm:tp", (2e6, 1e6)),
            inputs.Part("bubble", "idle:bubble", (1e6, 1e6)),
        ),
    ),
    inputs.HeatMap("compute", (0, 1), (3, 4), np.array([[1e6, 2e6], [1.2e6, np.nan]])),
    inputs.AxisCommunication(("dp", "tp"), (1e6, 0.0), (5e5, 0.0), (2e6, 0.0)),
    inputs.PipelineSchedule(
        ("stage 0", "stage 1"),
        _ROWS,
        _START,
        _START + 90_000_000,
        ("F", "F", "B", "odd"),
        _ROWS,
        np.array([0, 0, 1, -1], np.int64),
    ),
    inputs.BandwidthPoints(
        np.array([1e3, 1e6, 1e8]),
        np.array([1e8, 1e10, 2e11]),
        ("tp", "tp", "dp"),
        ("all_reduce", "all_gather", "all_reduce"),
        3e11,
        "NVLink, 300 GB/s",
    ),
    inputs.RooflinePoints(
        ("mm", "add", "none"),
        np.array([300.0, 0.1, 0.0]),
        np.array([2e14, 1e11, 0.0]),
        np.array([0.7, 0.1, 0.0]),
        3.12e14,
        2e12,
        "A100",
    ),
    inputs.TimelineSlices(
        ("rank 0", "rank 1"),
        _LEVELS.row,
        _LEVELS.start_ns,
        _LEVELS.end_ns,
        _LEVELS.role,
        _LEVELS.name,
        ("compute", "comm:tp"),
        ("gemm", "all_reduce"),
        _STARTS,
    ),
    inputs.Waterfall("before", 100e6, ("idle bubble", "exposed pp"), (-20e6, 5e6), "after"),
    inputs.PeerMatrix((0, 3), np.array([[0.0, 2e6], [1e6, 0.0]]), np.array([[-1, 8], [4, -1]])),
    inputs.RankGrid(
        "compute",
        ("tp 0", "tp 1"),
        ("pp 0", "pp 1"),
        np.array([[0, 1], [2, -1]]),
        np.array([[1e6, 2e6], [1e6, np.nan]]),
    ),
    inputs.PlanPoints(
        ("dp8", "tp8"),
        np.array([1e5, 8e4]),
        np.array([60e9, 20e9]),
        np.array([0.4, 0.3]),
        np.array([True, False]),
        64e9,
    ),
    inputs.PlanGrid(
        "speed", "pp", "tp", (1, 2), (1, 2), np.array([[1.0, 2.0], [3.0, np.nan]]), ("1", "2", "3", ""), ("a",) * 4
    ),
    inputs.MemoryParts(
        ("rank 0", "rank 1"), (("weights", "compute", (1e9, 1e9)), ("logits", "comm:pp", (0.0, 0.0))), 8e9
    ),
    inputs.RankBars("tokens of a step", ("rank 0", "rank 1"), (30.0, 10.0), (20.0, 20.0), "comm:ep"),
    inputs.RankBars("share", ("mm", "add"), (0.3, 0.1), (), "compute", Unit.FRACTION, texts=("30.0%", "10.0%")),
    inputs.MemoryLines(
        (
            inputs.MemoryLine(
                "rank 0", np.array([0, 1_000_000]), np.array([10**9, 2 * 10**9]), np.array([2 * 10**9, 2 * 10**9])
            ),
        )
    ),
    inputs.LaunchLines(
        (inputs.LaunchLine("rank 0", np.array([0, 1_000_000, 2_000_000]), np.array([5_000_000, 8_000, 0])),)
    ),
)
