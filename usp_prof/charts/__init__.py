"""Charts: plain columns (`inputs`) and a theme become a Bokeh figure, or the JSON that browsers draw.

To add a chart, write a function `(data, theme)` in the file of its kind, a class in `inputs`, a line in `CHARTS` and a
case in tests/charts. This package loads no Bokeh: a chart's file is imported when the chart is drawn.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from usp_prof.charts import inputs
from usp_prof.charts.inputs import ChartInput
from usp_prof.charts.theme import Theme

CHARTS: dict[type, str] = {
    inputs.BreakdownRows: "bars.breakdown",
    inputs.HeatMap: "maps.heat_map",
    inputs.AxisCommunication: "bars.axis_communication",
    inputs.PipelineSchedule: "timeline.schedule",
    inputs.BandwidthPoints: "points.bandwidth",
    inputs.RooflinePoints: "points.roofline",
    inputs.TimelineSlices: "timeline.timeline",
    inputs.Waterfall: "bars.waterfall",
    inputs.PeerMatrix: "maps.peer_matrix",
    inputs.RankGrid: "maps.rank_grid",
    inputs.RankBars: "bars.rank_bars",
    inputs.PlanPoints: "plans.plan_points",
    inputs.PlanGrid: "plans.plan_grid",
    inputs.MemoryParts: "bars.memory_parts",
    inputs.MemoryLines: "points.memory_lines",
    inputs.LaunchLines: "points.launch_lines",
}
"""File and function for each kind of input; a test compares it with this folder."""


def draw(data: ChartInput, theme: Theme) -> Any:  # noqa: ANN401 - a Bokeh model, and Bokeh is loaded only here
    """Draw a chart's input."""
    module, function = CHARTS[type(data)].split(".")
    return getattr(import_module(f"usp_prof.charts.{module}"), function)(data, theme)


# Charts for browsers: Bokeh's JSON, with names that do not depend on earlier charts.

_MODEL_ID = re.compile(r"p\d+\Z")
_ID_KEYS = ("id", "root_id")


def as_json(data: ChartInput, theme: Theme, prefix: str = "p") -> dict[str, Any]:
    """Draw a chart and return what BokehJS embeds; models are named by the prefix and a number from 0."""
    from bokeh.embed import json_item  # noqa: PLC0415 - loaded by those who draw only

    item: dict[str, Any] = renumbered(json_item(draw(data, theme)), {}, prefix)
    return item


def height_of(item: dict[str, Any]) -> int:
    """Return the height of a chart; 0 if the page determines it."""
    return int(item["doc"]["roots"][0]["attributes"].get("height") or 0)


def renumbered(item: Any, number_by_id: dict[str, str], prefix: str) -> Any:  # noqa: ANN401 - JSON
    """Renumber a chart's models from 0, so that the same chart always has the same bytes."""
    if isinstance(item, (list, tuple)):
        return [renumbered(entry, number_by_id, prefix) for entry in item]
    if not isinstance(item, dict):
        return item
    entries = {}
    for key, entry in item.items():
        if key in _ID_KEYS and isinstance(entry, str) and _MODEL_ID.match(entry):
            entries[key] = number_by_id.setdefault(entry, f"{prefix}{len(number_by_id)}")
        else:
            entries[key] = renumbered(entry, number_by_id, prefix)
    return entries
