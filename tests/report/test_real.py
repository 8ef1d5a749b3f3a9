"""Reports of real runs in the shared corpus: schema, sums and width."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from rich.console import Console

from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text, markdown, terminal
from usp_prof.run import open_run

if TYPE_CHECKING:
    from usp_prof.report.document import Document

CORPUS = Path(__file__).parents[3] / "shared" / "traces"
SETS = (
    "megatron-tp8-a100",
    "megatron-tp2-v100",
    "nanogpt-compare",
    "param-dlrm-8r",
    "torchrec-4r-v100",
    "gloo/pp4-paced-1F1B-4r",
)
pytestmark = [pytest.mark.real, pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real traces is not here")]


@pytest.fixture(scope="module", params=SETS)
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    opened = open_run(CORPUS / request.param, cache_dir=tmp_path_factory.mktemp("cache"))
    return build(opened.tables, analyze(opened.tables), name=opened.name, other_runs=opened.others)


def test_the_json_matches_its_schema(document: Document) -> None:
    jsonschema.validate(json.loads(json_text.write(document)), json_text.json_schema())


def test_the_parts_of_every_step_add_up_to_the_nanosecond(document: Document) -> None:
    steps: dict[tuple[int, int], int] = {}
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for metric in json.loads(json_text.write(document))["metrics"]:
        place = _cell(metric)
        if place is None:
            continue
        if metric["id"] == "step_time":
            steps[place] = metric["value"]
        elif _is_part(metric):
            sums[place] += metric["value"]
    assert steps
    assert sums == steps


def _cell(metric: dict[str, Any]) -> tuple[int, int] | None:
    dims = metric["dims"]
    return (dims["rank"], dims["step"]) if {"rank", "step"} <= set(dims) else None


def _is_part(metric: dict[str, Any]) -> bool:
    dims = set(metric["dims"]) - {"rank", "step"}
    wanted = {"compute_time": set(), "memcpy_time": set(), "exposed_comm_time": {"axis"}, "idle_time": {"cause"}}
    return wanted.get(metric["id"]) == dims


def test_the_bar_adds_up_and_every_section_fits_the_screen(document: Document) -> None:
    file = io.StringIO()
    terminal.write(document, Console(file=file, width=80), ("all",))
    terminal.write(document, Console(file=file, width=80))
    assert max(len(line) for line in file.getvalue().splitlines()) <= 80
    assert document.summary.blocks
    assert markdown.write(document)
