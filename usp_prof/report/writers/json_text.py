"""JSON writer: the document as `"schema": 1`; the shapes below are the published JSON Schema.

Other programs read metrics by id and dimensions. Sections and tables are for people and are not included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from usp_prof.model.finding import Basis, Level, Plain
from usp_prof.model.health import Severity
from usp_prof.model.metric import Better, Unit, Value
from usp_prof.report.run_facts import RunFacts

if TYPE_CHECKING:
    from usp_prof.report.document import Document

SCHEMA_VERSION: Literal[1] = 1

Fraction = Annotated[float, Meta(description="A fraction; 1 is the whole.")]


class RunJson(Struct, frozen=True):
    """Facts about the run and the part of it that was read."""

    name: str
    ranks: Annotated[list[int], Meta(description="Global ranks whose traces were read, ascending.")]
    world_size: Annotated[int | None, Meta(description="Number of ranks in the run; null if unknown.")]
    axes: Annotated[dict[str, int], Meta(description="Size of each parallel axis of the mesh.")]
    axes_inferred: Annotated[bool, Meta(description="True if no file names the axes and they were inferred.")]
    steps: Annotated[list[int], Meta(description="Analyzed steps, numbered as in the trace.")]
    devices: Annotated[list[str], Meta(description="Device names, each once.")]
    hosts: int
    software: dict[str, str]
    others: Annotated[list[str], Meta(description="Other runs in the same folder, newest first.")]


class MetricJson(Struct, frozen=True):
    """One value of a metric. A metric without a dimension in `dims` covers all of that dimension."""

    id: str
    unit: Annotated[Unit, Meta(description="Times in ns, fractions 0..1, bandwidth in bytes/s.")]
    better: Better
    value: int | float
    dims: Annotated[
        dict[str, int | str],
        Meta(
            description="Where it was measured: rank, step, axis, stage, collective, cause, ...; empty: the whole run."
        ),
    ]


class FindingJson(Struct, frozen=True):
    """One finding; gains are fractions of the job's step, and cannot be added (use the cumulative gains)."""

    code: str
    title: str
    level: Level
    where: dict[str, Plain]
    gain_fraction: Fraction
    cumulative_gain_fraction: Annotated[
        float, Meta(description="Largest gain of this finding and all before it together.")
    ]
    basis: Basis
    error_fraction: Annotated[float, Meta(description="Uncertainty of the gain, as a fraction of the step.")]
    edit: Annotated[str, Meta(description="The change of the run, in the grammar of `usp-prof whatif --edit`.")]
    evidence: dict[str, Plain]
    advice: str
    part_of: Annotated[int, Meta(description="Index in this list of an earlier finding with the same cause; -1: none.")]
    rows: Annotated[
        str, Meta(description="A SELECT for `usp-prof query` that returns the evidence; empty: the rule has none.")
    ]
    step_ns: Annotated[
        float, Meta(description="The step that the gains are shares of; without the cost of recording, if known.")
    ]


class HealthJson(Struct, frozen=True):
    """One problem of the input, or one unknown; rank -1 is the run."""

    code: str
    severity: Severity
    rank: int
    count: int
    detail: str
    file: str


class ReportJson(Struct, frozen=True):
    """Output of `usp-prof analyze --format json`."""

    schema: Annotated[Literal[1], Meta(description="Version of this schema.")]
    usp_prof: Annotated[str, Meta(description="Version of the program that wrote it.")]
    run: RunJson
    metrics: list[MetricJson]
    findings: Annotated[list[FindingJson], Meta(description="Worst first.")]
    health: list[HealthJson]


class ReportsJson(Struct, frozen=True):
    """Output of `--run all`: one report per run."""

    schema: Literal[1]
    reports: list[ReportJson]


class ChangeJson(Struct, frozen=True):
    """Edits applied together, and the predicted step."""

    edits: list[str]
    before_ns: float
    after_ns: float
    gain_fraction: Annotated[
        float, Meta(description="Share of a step (see definitions); negative if the step is longer.")
    ]
    error_fraction: Annotated[float, Meta(description="Uncertainty of the gain, as a fraction of the measured step.")]
    basis: Basis


class MemoryJson(Struct, frozen=True):
    """Memory of the rank with the most, by formula from the model's description: use the change, not the amount."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float


class PredictionJson(Struct, frozen=True):
    """The edits, and the error of the result."""

    alone: Annotated[list[ChangeJson], Meta(description="Each edit alone; gains overlap and cannot be added.")]
    together: ChangeJson
    replay_error_fraction: Annotated[float, Meta(description="Largest error of replaying the unchanged run.")]
    tokens_per_step_before: int
    tokens_per_step_after: int
    memory_before: MemoryJson | None
    memory_after: MemoryJson | None
    replayed: Annotated[
        str, Meta(description="Ranks that represent all ranks, here and in `before`; empty: all were replayed.")
    ] = ""


class WhatIfJson(ReportJson, frozen=True):
    """Output of `usp-prof whatif --format json`: the predicted run's report, and the recorded run's as `before`."""

    prediction: PredictionJson
    before: ReportJson


def write_prediction(document: Document, prediction: PredictionJson, before: Document) -> str:
    """Format the predicted run's document, with that of the recorded run."""
    after = _report(document)
    fields = {name: getattr(after, name) for name in after.__struct_fields__}
    return _text(WhatIfJson(**fields, prediction=prediction, before=_report(before))) + "\n"


def write(document: Document) -> str:
    """Format one document, with one metric per line; the same document gives the same bytes."""
    return _text(_report(document)) + "\n"


def write_all(documents: Sequence[Document]) -> str:
    """Format the documents of several runs as one object."""
    reports = ",\n".join(_text(_report(document)) for document in documents)
    return f'{{\n"schema": {SCHEMA_VERSION},\n"reports": [\n{reports}\n]\n}}\n'


def answer_text(name: str, fields: Mapping[str, Any]) -> str:
    """Format an answer that is not a report, such as a check: stable names, null for numbers that are not finite."""
    data = {"format": f"usp-prof-{name}", "version": 1, **fields}
    return json.dumps(_finite(data), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of every report."""
    _, components = msgspec.json.schema_components([ReportJson, ReportsJson, WhatIfJson], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "usp-prof report",
        "anyOf": [
            {"$ref": "#/$defs/ReportJson"},
            {"$ref": "#/$defs/ReportsJson"},
            {"$ref": "#/$defs/WhatIfJson"},
        ],
        "$defs": dict(sorted(components.items())),
    }


def _text(report: ReportJson) -> str:
    fields = (f'"{name}": {_field(getattr(report, name))}' for name in report.__struct_fields__)
    return "{\n" + ",\n".join(fields) + "\n}"


def _field(data: object) -> str:
    """Format lists with one entry per line: files of 100,000 metrics stay readable, and diffs stay small."""
    if not isinstance(data, list) or not data:
        return msgspec.json.encode(data).decode()
    return "[\n" + ",\n".join(msgspec.json.encode(entry).decode() for entry in data) + "\n]"


def _report(document: Document) -> ReportJson:
    return ReportJson(
        schema=SCHEMA_VERSION,
        usp_prof=document.version,
        run=_run(document.run),
        metrics=[_metric(value) for value in document.values],
        findings=msgspec.convert(document.findings, list[FindingJson], from_attributes=True),
        health=msgspec.convert(document.health, list[HealthJson], from_attributes=True),
    )


def _run(run: RunFacts) -> RunJson:
    facts = {name: getattr(run, name) for name in RunJson.__struct_fields__ if name not in {"others", "software"}}
    return msgspec.convert(facts | {"others": run.other_runs, "software": dict(sorted(run.software.items()))}, RunJson)


def _metric(value: Value) -> MetricJson:
    metric = value.metric
    return MetricJson(metric.id, metric.unit, metric.better, value.value, dict(sorted(value.dims.items())))
