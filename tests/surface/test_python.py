"""Python API, frozen: methods of the objects that `usp_prof` returns, their parameters, and their documentation."""

from __future__ import annotations

import inspect

import pytest

import usp_prof
from usp_prof.api.answer import Answer
from usp_prof.api.compared import Compared
from usp_prof.api.questions import Predicted
from usp_prof.api.whole import Report
from usp_prof.extras.planner.filled import Filled
from usp_prof.extras.planner.functions import Planned
from usp_prof.functions import Checked
from usp_prof.run import Run

TYPES = {kind.__name__: kind for kind in (Answer, Checked, Compared, Filled, Planned, Predicted, Report, Run)}
FUNCTIONS = (usp_prof.check, usp_prof.compare, usp_prof.memory, usp_prof.open_run, usp_prof.plan)

ASKED = (
    "breakdown", "communication", "critical_path", "findings", "host", "kernels", "memory", "mfu", "overlap",
    "pipeline", "report", "stragglers",
)  # fmt: skip
SURFACE = {
    "Answer": "df explain metric_table metric_values metrics notes picture plot question sentence",
    "Checked": "df explain passed report verdict",
    "Compared": "comparison df explain metrics plot",
    "Filled": "configuration df explain fit_probability fits footprints measured_bytes plot room_bytes",
    "Planned": "df error_fraction explain plans plot",
    "Predicted": "after_ns assume before_ns breakdown communication compare critical_path df error_fraction explain "
    "findings gain_fraction host kernels memory mfu name overlap pipeline plot prediction replayed report "
    "stragglers summary tables timeline whatif",
    "Report": "document summary text write",
    "Run": "answer assume breakdown communication critical_path derived files findings health health_of_files host "
    "kernels manifest memory metadata mfu name others overlap path pipeline query ranks report skipped sql stragglers "
    "summary table tables timeline to_hta whatif",
}


def names_of(kind: type) -> list[str]:
    """List the public members of a type, with the attributes that it declares."""
    declared = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})}
    return sorted(name for name in {*dir(kind), *declared} if not name.startswith("_"))


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_the_types_are_frozen(name: str) -> None:
    assert names_of(TYPES[name]) == SURFACE[name].split()


@pytest.mark.parametrize("question", ASKED)
def test_every_question_takes_ranks_and_steps(question: str) -> None:
    assert list(inspect.signature(getattr(Run, question)).parameters)[:3] == ["self", "ranks", "steps"]


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_everything_public_is_documented(name: str) -> None:
    assert inspect.getdoc(TYPES[name])
    for member in names_of(TYPES[name]):
        thing = inspect.getattr_static(TYPES[name], member, None)
        if inspect.isfunction(thing) or isinstance(thing, property):
            assert inspect.getdoc(thing), member


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_are_documented_and_typed(function: object) -> None:
    assert inspect.getdoc(function)
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters)
