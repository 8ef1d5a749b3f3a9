"""First screen and JSON of a run without known steps: figures of the window, none per step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stripped import device_only, sources

from usp_prof.api import sentences
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Document, KeyFigures, Stack
from usp_prof.report.figures import Figures
from usp_prof.report.writers import json_text
from usp_prof.run import open_run

PER_STEP = {"step_time", "job_step_time", "step_spread", "tokens_per_second", "mfu", "hfu"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """Report one step of four ranks with device activity only: nothing repeats."""
    folder: Path = tmp_path_factory.mktemp("window")
    declared: dict[str, Any] = {"mesh": {"dp": 4}, "work": {"steps": 1, "micro_batches": 2}, "shape": {"layers": 2}}
    write(Declaration.from_dict(declared), folder / "full")
    run = device_only(folder / "full", folder / "run")
    assert sources(run) == {"window"}
    return build(run.tables, analyze(run.tables), name="run")


def test_the_first_figure_is_the_window(document: Document) -> None:
    (figures,) = (block for block in document.summary.blocks if isinstance(block, KeyFigures))
    first = figures.figures[0]
    assert first.label == "window"
    (stack,) = (block for block in document.summary.blocks if isinstance(block, Stack))
    assert stack.title == "Where the mean rank window goes"
    assert first.value == pytest.approx(stack.total)
    assert "step" not in {figure.label for figure in figures.figures}


def test_the_json_holds_no_figure_per_step_and_states_why(document: Document) -> None:
    report = json.loads(json_text.write(document))
    ids = {row["id"] for row in report["metrics"]}
    assert not ids & PER_STEP
    assert {"window_time", "compute_time", "exposed_comm_time", "overlap_fraction"} <= ids
    (row,) = (row for row in report["health"] if row["code"] == "window_is_no_step")
    assert "profiler.step()" in row["detail"]


def test_host_figures_are_unknown_without_host_events(document: Document) -> None:
    assert not {"launch_count", "host_sync_time", "input_time"} & {value.metric.id for value in document.values}


def test_the_sentence_on_its_parts_names_the_window(document: Document, tmp_path: Path) -> None:
    assert sentences.breakdown(Figures(document.values)).startswith("The mean rank's window takes ")
    recorded = open_run(Path(__file__).parents[2] / "traces" / "recorded-1f1b", cache_dir=tmp_path)
    assert recorded.breakdown().sentence.startswith("The mean rank's step takes ")
