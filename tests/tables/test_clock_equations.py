"""Equations of the clock fit: conjugate gradients, for thousands of clocks, give the dense solution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from usp_prof.run import open_run
from usp_prof.tables.matching import least_squares
from usp_prof.tables.matching.least_squares import Equations, Observations
from usp_prof.tables.matching.same_calls import matched_parts
from usp_prof.tables.matching.ties import ties_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACES = Path(__file__).parents[2] / "traces"
RECORDED = sorted(folder.name for folder in TRACES.glob("recorded-*"))
SAMPLE = "recorded-1f1b"


def free(clocks: int, *, drifting: bool) -> NDArray[np.bool_]:
    """Select the offsets (and drifts) of all but the first clock."""
    unknowns = np.ones((clocks, 2 if drifting else 1), bool)
    unknowns[0] = False
    return unknowns


def chain(clocks: int, calls: int = 40, seed: int = 0) -> Observations:
    """Connect each clock with the next; ends differ by a microsecond within a second of recording."""
    random = np.random.default_rng(seed)
    pair = np.repeat(np.arange(clocks - 1), calls)
    call = np.repeat(np.arange(len(pair)), 2)
    clock = np.stack([pair, pair + 1], axis=1).ravel()
    time_s = np.repeat(random.uniform(-0.5, 0.5, len(pair)), 2)
    return Observations(call, clock, random.normal(0, 1_000, len(call)), time_s, clocks)


def both(
    monkeypatch: pytest.MonkeyPatch, seen: Observations, weight: NDArray[np.float64], unknowns: NDArray[np.bool_]
) -> tuple[Equations, Equations]:
    """Return equations with and without a matrix."""
    dense = Equations(seen, weight, unknowns)
    monkeypatch.setattr(least_squares, "DENSE_AT_MOST", 0)
    return dense, Equations(seen, weight, unknowns)


@pytest.mark.parametrize("drifting", [False, True])
def test_both_solvers_agree(drifting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, unknowns = chain(12), free(12, drifting=drifting)
    weight = np.random.default_rng(1).uniform(1e-3, 1, len(seen.call))
    nothing = np.zeros(unknowns.shape)
    dense, graph = both(monkeypatch, seen, weight, unknowns)
    assert np.abs(dense.solution(nothing) - graph.solution(nothing)).max() < 1e-6
    # Standard errors come from 64 draws: each is known to 9%.
    assert np.allclose(graph.spread()[unknowns], dense.spread()[unknowns], rtol=0.4)
    assert not graph.spread()[0].any()


def test_a_clock_without_evidence_of_drift_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Observations(np.array([0, 0]), np.array([0, 1]), np.array([0.0, -700.0]), np.zeros(2), 2)
    for system in both(monkeypatch, seen, np.ones(2), free(2, drifting=True)):
        assert np.allclose(system.solution(np.zeros((2, 2))), [[0, 0], [700, 0]])


def test_thousands_of_clocks_are_solved_without_a_matrix() -> None:
    """With 64 x 64 connected clocks and exact ends, every offset is exact to a thousandth of a ns."""
    side = 64
    offset = np.random.default_rng(2).normal(0, 1e6, side * side)
    offset[0] = 0
    grid = np.arange(side * side).reshape(side, side)
    clock = np.concatenate([grid.ravel(), grid.T.ravel()])
    seen = Observations(np.repeat(np.arange(2 * side), side), clock, -offset[clock], np.zeros(len(clock)), side * side)
    system = Equations(seen, np.ones(len(clock)), free(side * side, drifting=False))
    assert system.matrix is None
    assert np.abs(system.solution(np.zeros((side * side, 1)))[:, 0] - offset).max() < 1e-3


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[] if run == SAMPLE else [pytest.mark.full]) for run in RECORDED]
)
def test_both_solvers_agree_on_recorded_calls(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank is treated as a separate clock, because most recorded runs have too few hosts."""
    tables = open_run(TRACES / run, cache_dir=tmp_path).tables
    ranks = np.asarray(tables.ranks)
    ties = ties_of(matched_parts(tables), ranks).across(ranks)
    if not len(ties.call):
        return
    first_end = int(ties.end.min())
    time_s = (ties.end - first_end) / 1e9
    seen = Observations(ties.call, ties.row, (ties.end - first_end).astype(float), time_s, len(ranks))
    unknowns = free(len(ranks), drifting=True)
    nothing, weight = np.zeros(unknowns.shape), np.ones(len(seen.call))
    dense, graph = (system.solution(nothing) for system in both(monkeypatch, seen, weight, unknowns))
    assert np.abs(seen.shift(dense) - seen.shift(graph)).max() < 0.01
