"""What do changes give, each alone and all together? The replayed step beside the measured one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.charts.inputs import Waterfall
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, KeyFigure, KeyFigures, Section, TableColumn, Text
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.whatif.predict import Prediction


def section(error: float, alone: Sequence[Prediction], together: Prediction) -> Section:
    """Set out the step with changes made; `error` is what the replay of the unchanged run misses."""
    return Section(
        "whatif",
        "What if: " + " ".join(str(edit) for edit in together.edits),
        (
            key_figures(together, f"mean over ranks; replayed unchanged: within {100 * error:.2f} % of it"),
            *([Chart("", _bars(together))] if together.before_ns > 0 else []),
            _table(alone),
            Text("Gains overlap: they are never added, but replayed together.", quiet=True),
        ),
    )


def key_figures(together: Prediction, basis: str, gain: str = "gain") -> KeyFigures:
    """Give the step before and after, and what is gained."""
    return KeyFigures(
        (
            KeyFigure("step, measured", together.before_ns, Unit.NS, basis),
            KeyFigure("step, predicted", together.after_ns, Unit.NS),
            KeyFigure(gain, together.gain_fraction, Unit.FRACTION, sure(together)),
        )
    )


def sure(prediction: Prediction) -> str:
    """Say how sure a prediction is, and what it rests on."""
    return f"± {quantity(prediction.error_fraction, Unit.FRACTION)} of the step, {prediction.basis}"


def _bars(together: Prediction) -> Waterfall:
    return Waterfall(
        "measured", together.before_ns, ("changes, together",), (together.after_ns - together.before_ns,), "predicted"
    )


def _table(alone: Sequence[Prediction]) -> DataTable:
    return DataTable(
        "Each change alone",
        (
            TableColumn("change"),
            TableColumn("step", Unit.NS),
            TableColumn("gain alone", Unit.FRACTION),
            TableColumn("error", Unit.FRACTION),
            TableColumn("basis"),
        ),
        tuple(
            (str(each.edits[0]), each.after_ns, each.gain_fraction, each.error_fraction, str(each.basis))
            for each in alone
        ),
    )
