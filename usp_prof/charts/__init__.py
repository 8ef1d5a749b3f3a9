"""Charts: plain columns (`inputs`) and a theme to one Bokeh figure, one figure a module.

A chart is `figure(data, theme)` in the module of its name. A new chart is one file, one class in `inputs`, one line
in `CHARTS` and one test file. This package itself loads no Bokeh: `draw` imports a chart when it is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from usp_prof.charts import inputs

if TYPE_CHECKING:
    from usp_prof.charts.inputs import ChartInput
    from usp_prof.charts.theme import Theme

CHARTS: dict[type, str] = {
    inputs.BreakdownRows: "breakdown",
    inputs.HeatMap: "heat_map",
    inputs.AxisCommunication: "axes",
    inputs.PipelineSchedule: "schedule",
    inputs.BandwidthPoints: "bandwidth",
    inputs.RooflinePoints: "roofline",
    inputs.TimelineSlices: "timeline",
    inputs.Waterfall: "waterfall",
    inputs.PeerMatrix: "peers",
    inputs.RankGrid: "rank_grid",
    inputs.RankBars: "rank_bars",
    inputs.PlanPoints: "plan_front",
    inputs.PlanGrid: "plan_grid",
    inputs.MemoryParts: "footprint",
    inputs.MemoryLines: "memory_line",
    inputs.LaunchLines: "launch_lead",
}
"""The module that draws each kind of input; a test walks this folder against it."""


def draw(data: ChartInput, theme: Theme) -> Any:  # noqa: ANN401 - a Bokeh model, and Bokeh is loaded only here
    """Draw a chart's input with the chart made for it."""
    module = import_module(f"usp_prof.charts.{CHARTS[type(data)]}")
    return module.figure(data, theme)
