"""Experiment trackers: metrics arrive through each library's own API, offline; a missing library is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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


def test_an_address_that_mlflow_refuses_is_reported_with_a_hint(
    report: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    mlflow.set_tracking_uri("gopher://nowhere")
    with pytest.raises(UsageError, match=r"mlflow: .*gopher") as refused:
        trackers.log(report, "mlflow")
    assert "MLFLOW_TRACKING_URI" in refused.value.hint


class RefusedError(Exception):
    """What a tracker's library raises without a key or a server."""


def refuse(*_: object, **__: object) -> None:
    raise RefusedError("No API key\n configured")


LIBRARIES = {
    "wandb": SimpleNamespace(Error=RefusedError, init=refuse),
    "mlflow": SimpleNamespace(exceptions=SimpleNamespace(MlflowException=RefusedError), set_experiment=refuse),
}
"""The parts of the libraries that report a missing key or server."""


@pytest.mark.parametrize("tracker", LIBRARIES)
def test_an_error_of_the_tracker_is_one_line_with_a_hint(
    tracker: str, report: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, LIBRARIES[tracker])
    with pytest.raises(UsageError, match=f"{tracker}: No API key configured") as refused:
        trackers.log(report, tracker)
    assert tracker.upper() in refused.value.hint  # the variable to set


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
    absent = replace(trackers._TRACKERS["wandb"], library="not_installed_anywhere")
    monkeypatch.setitem(trackers._TRACKERS, "wandb", absent)
    with pytest.raises(UsageError, match="not_installed_anywhere") as refused:
        trackers.log(report, "wandb")
    assert refused.value.hint == "pip install 'usp-prof[wandb]'"
