"""pytest plugin: the fixtures `usp_prof_run` and `assert_no_regression` gate a recorded run.

::

    def test_training_is_as_fast_as_before(assert_no_regression):
        assert_no_regression("traces/today", baseline="baseline.json", max_regression={"step_time": "3%"})

Nothing heavy is imported until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from usp_prof.gate.verdict import Report
    from usp_prof.run import Run


class AssertNoRegression(Protocol):
    """Type of the fixture `assert_no_regression`."""

    def __call__(
        self,
        path: str | Path | Run,
        *,
        baseline: str | Path = "",
        policy: str | Path = "",
        minimum: Mapping[str, float] | None = None,
        max_regression: Mapping[str, str] | None = None,
        inconclusive: str = "fail",
    ) -> Report:
        """Check a run against a baseline; fail the test with the verdict's text if the run got worse."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options for a default baseline and policy, used by tests that pass none."""
    group = parser.getgroup("usp-prof", "regression gate on recorded training runs")
    group.addoption("--usp-prof-baseline", metavar="FILE", default="", help="baseline.json for assert_no_regression")
    group.addoption("--usp-prof-policy", metavar="FILE", default="", help="policy.toml for assert_no_regression")


@pytest.fixture(scope="session")
def usp_prof_run() -> Callable[[str | Path], Run]:
    """Return a function that reads a folder of traces; each folder is read once a session."""
    runs: dict[str, Run] = {}

    def read(path: str | Path) -> Run:
        from usp_prof.run import open_run  # noqa: PLC0415 - only tests that ask pay for it

        if str(path) not in runs:
            runs[str(path)] = open_run(path)
        return runs[str(path)]

    return read


@pytest.fixture
def assert_no_regression(
    request: pytest.FixtureRequest, usp_prof_run: Callable[[str | Path], Run]
) -> AssertNoRegression:
    """Return a function that checks a run against a baseline and fails the test when it got worse."""

    def check(
        path: str | Path | Run,
        *,
        baseline: str | Path = "",
        policy: str | Path = "",
        minimum: Mapping[str, float] | None = None,
        max_regression: Mapping[str, str] | None = None,
        inconclusive: str = "fail",
    ) -> Report:
        __tracebackhide__ = True
        from usp_prof import checking  # noqa: PLC0415 - loaded only by suites that check runs

        terms = checking.read_terms(
            str(baseline or request.config.getoption("--usp-prof-baseline")),
            str(policy or request.config.getoption("--usp-prof-policy")),
            minimum or {},
            max_regression or {},
            inconclusive=inconclusive,
        )
        report = checking.check_run(usp_prof_run(path) if isinstance(path, (str, Path)) else path, terms)
        if report.exit_code:
            pytest.fail(checking.text(report), pytrace=False)
        return report

    return check
