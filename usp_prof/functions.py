"""Public functions of the core besides `open_run`: `compare` and `check`.

A run is an opened run or the path of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from usp_prof.analyses.result import columns_of, frame
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.run import Run, opened

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.api.compared import Compared
    from usp_prof.gate.verdict import Report as Verdict

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def compare(before: Run | str | Path, after: Run | str | Path, *, across: Sequence[str] = ()) -> Compared:
    """Compare two runs: every metric, and the parts of the step that explain the difference.

    Metrics are compared even if the runs differ in a kind listed in `across`, such as `hardware`.
    """
    from usp_prof.api.compared import compare_tables  # noqa: PLC0415 - each function loads what it needs
    from usp_prof.gate.facts import FactKind  # noqa: PLC0415

    if not isinstance(across, Iterable):
        raise UsageError(f"across={across!r} is not a list", hint='across=["hardware"]')
    across = [across] if isinstance(across, str) else list(across)
    unknown_kinds = [kind for kind in across if kind not in list(FactKind)]
    if unknown_kinds:
        raise unknown_name("kind of difference", unknown_kinds[0], [str(kind) for kind in FactKind])
    runs = [opened(run) for run in (before, after)]
    names = [run.name for run in runs]
    if names[0] == names[1]:  # two folders may hold runs of one name
        names = [str(run.path) for run in runs]
    sides = list(zip(names, (run.tables for run in runs), strict=True))
    return compare_tables(sides[0], sides[1], [FactKind(kind) for kind in across])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checked:
    """The verdict of a check."""

    report: Verdict

    @property
    def passed(self) -> bool:
        """Whether everything could be judged and nothing regressed."""
        from usp_prof.gate.judgment import Verdict as Judged  # noqa: PLC0415 - loaded with the report

        return self.report.verdict is Judged.PASS

    @property
    def verdict(self) -> str:
        """The verdict in one word, as in the JSON."""
        return str(self.report.verdict)

    @property
    def df(self) -> pd.DataFrame:
        """One row per metric: unit, before, after, verdict, reason."""
        rows = self.report.judgements
        return frame(
            {
                "metric": [judgment.key for judgment in rows],
                "unit": [str(judgment.unit) for judgment in rows],
                **columns_of(rows, "before", "after"),
                "verdict": [str(judgment.verdict) for judgment in rows],
                **columns_of(rows, "reason"),
            }
        )

    def explain(self) -> str:
        """Return the report of `usp-prof check` as text."""
        from usp_prof.checking import text  # noqa: PLC0415 - loaded with the report

        return text(self.report)

    def __repr__(self) -> str:
        return f"check: {self.verdict}"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.verdict)}</b></p><pre>{escape(self.explain())}</pre>"


def check(
    run: Run | str | Path,
    baseline: str | Path = "",
    *,
    policy: str | Path = "",
    minimum: Mapping[str, float] = _NOTHING,
    max_regression: Mapping[str, str] = _NOTHING,
) -> Checked:
    """Check a run against a baseline file, or against lower bounds such as `minimum={"mfu": 0.38}`.

    `max_regression` allows a change by metric, such as `{"step_time": "3%"}`; `policy` is a file of such rules.
    Raises `UspProfError` if there is nothing to check against.
    """
    from usp_prof import checking  # noqa: PLC0415 - each function loads what it needs

    terms = checking.read_terms(str(baseline), str(policy), minimum, max_regression)
    return Checked(checking.check_run(opened(run), terms))
