"""`explain`: a page exists for every code that a report can print."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli.app import main
from usp_prof.cli.commands.explain import page
from usp_prof.findings import all_rules
from usp_prof.model.errors import UsageError
from usp_prof.model.health import HEALTH_CODES
from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS = ("step_time", "clock_residual_p99", "exposed_comm_fraction", "job_slowdown", "repair_gain")
MADE_OF_PARTS = {"f'steps_{flag}'": {"steps_warm_up", "steps_odd"}}
SEVERITIES = {"Severity.INFO", "Severity.ERROR", "Severity.DATA_LOSS", "INFO", "ERROR", "LOSS"}


def _written(tree: ast.Module) -> Iterator[ast.expr]:
    """Return the first item of a health row, or of a tuple whose second item is a severity."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("HealthRow", "_note") and node.args:
            yield node.args[0]
        elif isinstance(node, ast.Tuple) and len(node.elts) > 1 and ast.unparse(node.elts[1]) in SEVERITIES:
            yield node.elts[0]


def codes_of_health() -> set[str]:
    """Walk the package for all codes of health that its modules write."""
    spec = find_spec("usp_prof")
    assert spec is not None
    assert spec.origin is not None
    codes = set()
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if file.parent.name == "completeness":  # rows with a severity that depends on how much is missing
            texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            codes |= texts & set(HEALTH_CODES)
        for code in _written(tree):
            if isinstance(code, ast.Constant):
                codes.add(code.value)
            elif isinstance(code, ast.JoinedStr):
                codes |= MADE_OF_PARTS[ast.unparse(code)]
            elif ast.unparse(code) in constants:
                codes.add(constants[ast.unparse(code)])
            else:  # a variable: its tuples are found separately
                assert ast.unparse(code) in {"code", *SEVERITIES}, f"{file.name}: {ast.unparse(code)}"
    return codes


@pytest.mark.slow
def test_every_health_code_in_the_code_is_documented() -> None:
    assert codes_of_health() == set(HEALTH_CODES)


@pytest.mark.parametrize(
    "code",
    [
        *(rule.CODE for rule in all_rules()),
        *HEALTH_CODES,
        *(kind.name for kind in (*EDITS, *PIPELINE_EDITS)),
        *METRICS,
    ],
)
def test_every_code_has_a_page(code: str) -> None:
    assert len(page(code)) > 20


def test_an_unknown_code_suggests_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        page("missing_rank")
    assert "missing_ranks" in caught.value.hint


def test_the_list_contains_all_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {code} " in output for code in ("slow-rank", "truncated", "rank_as_peers", *METRICS))
