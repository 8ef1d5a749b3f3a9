"""Chart JSON: it depends on the chart alone, and two drawings on one page do not share names."""

from __future__ import annotations

import json

from usp_prof.charts import as_json, height_of, renumbered
from usp_prof.charts.inputs import BreakdownRows, Part
from usp_prof.charts.theme import LIGHT

ROWS = BreakdownRows(("rank 0", "rank 1"), (Part("compute", "compute", (3, 4)), Part("idle", "idle:host", (2, 1))))


def test_the_json_of_a_chart_does_not_depend_on_earlier_charts() -> None:
    first, second = as_json(ROWS, LIGHT), as_json(ROWS, LIGHT)
    assert json.dumps(first) == json.dumps(second)
    assert height_of(first) > 0


def test_a_prefix_distinguishes_drawings() -> None:
    first, second = as_json(ROWS, LIGHT, "a-"), as_json(ROWS, LIGHT, "b-")
    assert json.dumps(first).replace('"a-', '"b-') == json.dumps(second)
    assert {root["id"][:2] for root in first["doc"]["roots"]} == {"a-"}


def test_models_are_numbered_from_zero_and_texts_are_unchanged() -> None:
    item = {"id": "p1044", "x": [{"id": "p2000"}, {"id": "p1044"}, "p1044"], "root_id": "p2000", "name": "p7"}
    assert renumbered(item, {}, "p") == {
        "id": "p0",
        "x": [{"id": "p1"}, {"id": "p0"}, "p1044"],
        "root_id": "p1",
        "name": "p7",
    }
