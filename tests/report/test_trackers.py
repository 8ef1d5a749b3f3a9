"""Experiment trackers: metrics arrive through each library's own API, offline; a missing library is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from papers import document

from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.report import trackers

if TYPE_CHECKING:
    from usp_prof.report.document import Document

STEP = Metric("step_time", Unit.NS, Better.LOWER, "Step", "Step time.", ("rank", "axis"))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Document:
    monkeypatch.chdir(tmp_path)
    return document(values=(Value(STEP, 2e9), Value(STEP, 1e9, {"axis": "dp"}), Value(STEP, 3e9, {"rank": 0})))


def test_tensorboard_gets_an_event_file(report: Document) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - an extra

    assert trackers.log(report, "tensorboard") == 2
    events = EventAccumulator(f"runs/usp-prof/{report.run.name}")
    events.Reload()
    assert events.Tags()["tensors"] == ["step_time_seconds", "step_time_seconds_by_axis/dp"]


def test_mlflow_gets_a_run(report: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    assert trackers.log(report, "mlflow") == 2
    (run,) = mlflow.search_runs(experiment_names=["usp-prof"], output_format="list")
    assert run.data.metrics == {"step_time_seconds": 2.0, "step_time_seconds_by_axis/dp": 1.0}


def test_wandb_gets_a_run_offline(report: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert trackers.log(report, "wandb") == 2
    assert any(path.name.startswith("offline-run-") for path in Path("wandb").iterdir())


def test_trackio_gets_a_run(report: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    assert trackers.log(report, "trackio") == 2


def test_a_tracker_that_is_not_installed_is_named(report: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._LIBRARIES, "wandb", "not_installed_anywhere")
    with pytest.raises(UsageError, match="not_installed_anywhere") as refused:
        trackers.log(report, "wandb")
    assert refused.value.hint == "pip install 'usp-prof[wandb]'"
