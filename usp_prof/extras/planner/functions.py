"""Public functions of the planner: `usp_prof.plan` and `usp_prof.memory`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from usp_prof.api.answer import bokeh_figure
from usp_prof.extras.planner.answers.plan import counts, frame, points
from usp_prof.extras.planner.calibration import calibrate
from usp_prof.extras.planner.candidates import KNOBS
from usp_prof.extras.planner.filled import Filled, fill_of_model, fill_of_run
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER, profile_named
from usp_prof.extras.planner.question import planned_model, question_of
from usp_prof.extras.planner.ranges import check_numbers, checked_settings
from usp_prof.extras.planner.search import Plans, search
from usp_prof.model.errors import UsageError
from usp_prof.run import Run, opened

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Planned:
    """The configurations that fit, fastest first."""

    plans: Plans
    error_fraction: float | None = None
    """Error of the predicted step of the recorded run; None without a run."""

    @property
    def df(self) -> pd.DataFrame:
        """One row per configuration: degrees, step, tokens, MFU, memory, bubble, exposed communication."""
        return frame(sorted(self.plans.best, key=lambda plan: plan.expected_step_ns))

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw the speed of each plan over its memory, and the Pareto front of both."""
        return bokeh_figure(points(self.plans), theme)

    def explain(self) -> str:
        """Return a sentence on the plans tried, those that fit, and the accuracy."""
        question = self.plans.question
        text = f"{question.devices} x {question.cluster.device}: {counts(self.plans)}."
        if self.plans.best:
            text += f" Fastest: {self.plans.best[0].configuration}."
        if self.error_fraction is not None:
            text += f" The step of the recorded run itself is predicted with an error of {self.error_fraction:+z.1%}."
        return text

    def __repr__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.explain())}</p>{self.df.head(8).to_html(index=False)}"


def plan(  # noqa: PLR0913 - a plan has this many inputs
    run: Run | str | Path | None = None,
    *,
    model: str | Path | None = None,
    sequence: int = 0,
    device: str = "",
    devices: int = 0,
    batch: int = 0,
    dtype: str = "",
    habits: str = "",
    **pinned: int | str,
) -> Planned:
    """Rank the configurations of a model that fit in memory by predicted step time.

    A recorded run supplies omitted arguments and the speed of its kernels. Without one, `model` (a name such as
    `Llama-3-8B`, or a `config.json`), `device`, `devices` and `batch` (sequences per step) are required. `habits` names
    the trainer whose measured behavior is assumed. `pinned` settings are fixed: `plan(..., tp=8, zero=1)`.
    Raises `UspProfError` if the prediction of the recorded run's own step is too far off.
    """
    profile, settings = profile_named(habits or DEFAULT_TRAINER), checked_settings(pinned, KNOBS)
    check_numbers({"sequence": sequence, "devices": devices, "batch": batch})
    calibration = calibrate(opened(run).tables) if run is not None else None
    question = question_of(
        calibration, model=str(model or ""), sequence=sequence, device=device, devices=devices, batch=batch,
        dtype=dtype, profile=profile,
    )  # fmt: skip
    plans = search(replace(question, pinned=settings))
    return Planned(plans, calibration.error_fraction if calibration is not None else None)


def memory(
    run: Run | str | Path | None = None,
    *,
    model: str | Path | None = None,
    sequence: int = 0,
    device: str = "",
    habits: str = "",
    **degrees: float | str,
) -> Filled:
    """Predict the memory of every pipeline rank, part by part: `memory(model="Llama-3-8B", dp=8, zero=1)`.

    For a recorded run, its own configuration is predicted and shown with the measured peaks. Otherwise pass `model` (a
    name, or a `config.json`) and `degrees` (`dp`, `tp`, `pp`, `zero`, `micro_batch`, `micro_batches`, `schedule`,
    `recompute`, `dtype`, ...). With a `device`, the answer says whether the configuration fits. `habits` names the
    trainer whose measured behavior is assumed.
    """
    if run is not None:
        if model or sequence or habits or degrees:
            raise UsageError("a recorded run has its own configuration", hint="memory(run) or memory(model=..., tp=8)")
        return fill_of_run(opened(run).tables, device)
    if not model:
        raise UsageError("give a run, or a model with the degrees", hint='memory(model="Llama-3-8B", sequence=8192)')
    check_numbers({"sequence": sequence})
    entry = planned_model(str(model), sequence, None, "give sequence=4096")
    return fill_of_model(entry, degrees, device, habits or DEFAULT_TRAINER)
