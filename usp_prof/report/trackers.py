"""Experiment trackers: the metrics of a report, logged through each tracker's own library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Value
from usp_prof.report.writers.openmetrics import exported, exported_name

if TYPE_CHECKING:
    from usp_prof.report.document import Document

PROJECT = "usp-prof"
_DETAILS = {"rank", "step"}
"""Values with these dimensions are not logged: there are as many as ranks or steps."""


def log(document: Document, tracker: str) -> int:
    """Log a report to a tracker, at the last analyzed step; return the number of logged metrics."""
    traits = _TRACKERS[tracker]
    try:
        library = import_module(traits.library)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed", hint=f"pip install 'usp-prof[{tracker}]'") from None
    metrics = {_key(value): float(exported(value)) for value in document.values if not _DETAILS & set(value.dims)}
    try:
        traits.log(library, document, metrics)
    except traits.errors(library) as error:
        raise UsageError(f"{tracker}: {' '.join(str(error).split())}", hint=traits.hint) from error
    return len(metrics)


def _key(value: Value) -> str:
    """Return a key such as `exposed_time_seconds_by_axis/dp`: every tracker allows its characters.

    MLflow may keep keys as files, so no key is the folder of another.
    """
    name = exported_name(value.metric)
    if not value.dims:
        return name
    return f"{name}_by_{'_'.join(value.dims)}/{'.'.join(_allowed(str(where)) for where in value.dims.values())}"


def _allowed(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-. " else "_" for letter in text)


def _step(document: Document) -> int:
    return document.run.steps[-1] if document.run.steps else 0


def _facts(document: Document) -> dict[str, Any]:
    run = document.run
    return {"ranks": len(run.ranks), "axes": dict(run.axes), "devices": list(run.devices), "model": run.model}


def _wandb(library: Any, document: Document, metrics: Mapping[str, float]) -> None:  # noqa: ANN401 - wandb or trackio
    library.init(project=PROJECT, name=document.run.name, config=_facts(document))
    library.log(dict(metrics), step=_step(document))
    library.finish()


def _mlflow(library: Any, document: Document, metrics: Mapping[str, float]) -> None:  # noqa: ANN401 - the module
    library.set_experiment(PROJECT)
    with library.start_run(run_name=document.run.name):
        library.log_params(_facts(document))
        library.log_metrics(dict(metrics), step=_step(document))


def _tensorboard(library: Any, document: Document, metrics: Mapping[str, float]) -> None:  # noqa: ANN401 - the module
    writer = library.Writer(f"runs/{PROJECT}/{_allowed(document.run.name)}")
    for key, value in metrics.items():
        writer.add_scalar(key, value, _step(document))
    writer.close()


def _no_errors(_: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - the module
    return ()


@dataclass(frozen=True, slots=True)
class _Tracker:
    """How to log to one tracker."""

    library: str
    log: Callable[[Any, Document, Mapping[str, float]], None]
    errors: Callable[[Any], tuple[type[Exception], ...]] = _no_errors
    """The errors by which the library reports a missing key or an unreachable server."""
    hint: str = ""


_TRACKERS = {
    "trackio": _Tracker("trackio", _wandb),
    "wandb": _Tracker("wandb", _wandb, lambda library: (library.Error,), "WANDB_MODE=offline logs to ./wandb"),
    "mlflow": _Tracker(
        "mlflow",
        _mlflow,
        lambda library: (library.exceptions.MlflowException,),
        "set MLFLOW_TRACKING_URI to your server, or pip install mlflow for a local database",
    ),
    "tensorboard": _Tracker("tensorboard.summary", _tensorboard),
}
TRACKERS = tuple(_TRACKERS)
"""Names of the trackers; each is an extra with its library."""
