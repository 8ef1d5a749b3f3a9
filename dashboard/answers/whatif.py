"""Replays as sections: edits alone and together, suggestions stacked, another pipeline schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..engine import (
    Chart,
    DataTable,
    KeyFigure,
    KeyFigures,
    Section,
    TableColumn,
    Text,
    Unit,
    Waterfall,
    quantity,
    simulated_schedule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine import Edit, Finding, PipelineSchedule, Prediction, Rescheduled, SimulatedSchedule


def whatif_section(error: float, alone: Sequence[Prediction], together: Prediction) -> Section:
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


# Suggestions together: the step from what was measured to what is predicted, one suggestion after the other.


LONGEST = 48
"""Letters of a finding's title beside a bar."""


def together_section(ticked: Sequence[Finding], steps: Sequence[Prediction], path: str) -> Section:
    """Set out what the ticked findings give; `steps` replays the first, the first two, and so on."""
    words = " ".join(f"--edit {edit}" for edit in " ".join(str(edit) for edit in steps[-1].edits).split())
    return Section(
        "together",
        "Suggestions made together",
        (
            key_figures(
                steps[-1],
                "mean over ranks",
                f"gain of {len(ticked)} together" if len(ticked) > 1 else "gain of the one ticked",
            ),
            Chart("", bars(ticked, steps)),
            Text(f"usp-prof whatif {path} {words}", quiet=True),
        ),
    )


def bars(ticked: Sequence[Finding], steps: Sequence[Prediction]) -> Waterfall:
    """Set the step out from what was measured, over what each change takes from it, to what is predicted."""
    after = [steps[0].before_ns, *(step.after_ns for step in steps)]
    return Waterfall(
        "now",
        after[0],
        tuple(_short(finding.title) for finding in ticked),
        tuple(late - early for early, late in pairwise(after)),
        "with all of it",
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# Another pipeline schedule: the measured actions in its order.


def schedule_section(edit: Edit, found: Rescheduled) -> Section:
    """Set out the window under another schedule beside the measured one, and its actions."""
    simulated = f"its own order simulated: {quantity(found.simulated_ns, Unit.NS)}"
    figures = (
        KeyFigure("window, measured", found.measured_ns, Unit.NS, simulated),
        KeyFigure(f"window under {edit.value}", found.other_ns, Unit.NS, f"± {quantity(found.error_ns, Unit.NS)}"),
        KeyFigure("bubble", found.bubble_fraction, Unit.FRACTION),
    )
    return Section(
        "another", f"Under another schedule: {edit}", (KeyFigures(figures), Chart("", as_chart(found.timeline)))
    )


def as_chart(line: SimulatedSchedule) -> PipelineSchedule:
    """Give simulated actions as the chart draws them."""
    stages = [
        sorted({a.stage for a, r in zip(line.actions, line.rank.tolist(), strict=True) if r == rank})
        for rank in range(line.ranks)
    ]
    return simulated_schedule(line, tuple(f"stage {', '.join(map(str, held))}" for held in stages))
