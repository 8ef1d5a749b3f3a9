"""JSON report: it conforms to the published schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from papers import FINDING, HOSTILE, document, empty_document, facts

from usp_prof.report.writers import json_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "report.schema.json"


def test_the_published_schema_equals_the_schema_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text()) == json_text.json_schema()


@pytest.mark.parametrize("doc", [document(), empty_document(), document(run=facts(world_size=None, name=HOSTILE))])
def test_every_report_matches_the_schema(doc: object) -> None:
    schema = json_text.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json_text.write(doc)), schema)  # type: ignore[arg-type]
    jsonschema.validate(json.loads(json_text.write_all([doc, doc])), schema)  # type: ignore[list-item]


def test_the_schema_rejects_other_json() -> None:
    report = json.loads(json_text.write(document()))
    validator = jsonschema.Draft202012Validator(json_text.json_schema())
    assert not validator.is_valid(report | {"schema": 2})
    assert not validator.is_valid({key: report[key] for key in report if key != "metrics"})
    assert not validator.is_valid(report | {"metrics": [{"id": "x"}]})


def test_metrics_have_id_unit_direction_value_and_dimensions() -> None:
    report = json.loads(json_text.write(document()))
    assert report["schema"] == 1
    assert report["metrics"] == [
        {"id": "step_time", "unit": "ns", "better": "lower", "value": 431_000_000, "dims": {}},
        {"id": "step_time", "unit": "ns", "better": "lower", "value": 430_000_000, "dims": {"rank": 0, "step": 3}},
    ]
    assert report["run"]["axes"] == {"tp": 8}
    assert report["run"]["steps"] == [3, 4, 5]


def test_findings_carry_place_gain_and_evidence() -> None:
    (finding,) = json.loads(json_text.write(document()))["findings"]
    assert finding["where"] == {"rank": 6, "axis": "tp"}
    assert finding["gain_fraction"] == 0.098
    assert finding["basis"] == "replayed"
    assert finding["evidence"] == {"late_ns": 1_200_000}
    assert finding["step_ns"] == FINDING.step_ns


def test_a_document_is_written_reproducibly_with_one_metric_per_line() -> None:
    text = json_text.write(document())
    assert text == json_text.write(document())
    assert sum('"id":"step_time"' in line for line in text.splitlines()) == 2
