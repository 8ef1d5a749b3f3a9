"""What would several suggestions give together? The step from what was measured to what is predicted, one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dashboard.answers.whatif import key_figures
from usp_prof.charts.inputs import Waterfall
from usp_prof.report.document import Chart, Section, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.finding import Finding
    from usp_prof.whatif.predict import Prediction

LONGEST = 48
"""Letters of a finding's title beside a bar."""


def section(ticked: Sequence[Finding], steps: Sequence[Prediction], path: str) -> Section:
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
