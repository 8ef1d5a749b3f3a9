"""Fit of the planner's constants: robust least squares on the logarithm of measured step times, in plain NumPy.

    python benchmarks/planner_fit.py [REFERENCE]      prints the constants for planner/profiles.py

Every constant is fitted as its logarithm with a weak prior at its start value, so that constants without evidence in
the rows keep their physical value. Rows that are far off (unexpected stalls, or expected ones that did not occur) are
omitted, the stall probabilities are counted, and the fit is repeated.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from planner_rows import Measured, long_context, playbook, published, vtrain

from usp_prof.extras.planner import stalls
from usp_prof.extras.planner.profiles import PROFILES, Profile
from usp_prof.extras.planner.stages import stages_of
from usp_prof.extras.planner.step import Step, step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from usp_prof.extras.planner.cases import Cases

    Residuals = Callable[[NDArray[np.float64]], NDArray[np.float64]]

SWEEP_CONSTANTS = (
    "rest_scale", "host_tensor", "network_share", "host_pipeline", "host_pipeline_tensor", "stall", "bucket_bytes",
    "fixed",
)  # fmt: skip
"""Constants of nanotron that the playbook's sweep determines; held-out rows are no better with eight more of them."""
PUBLISHED_CONSTANTS = ("host_unfused",)
"""Constant of all other trainers that published speeds determine. With more, left-out sources are no better."""
START = Profile(network_share=0.8, host_pipeline=5e-3, host_pipeline_tensor=0.5e-3, stall=1.0)
START_CHANCES = {"stall_of_link": 1e-3, "stall_of_whole_gradients": 3e-2}
SOURCES = ("dgxc.csv", "megatron_bridge.csv", "nemo_history.csv", "llm_foundry.csv", "torchtitan.csv")
SLOW = 1.6
"""Ratio to a step without a stall above which a row counts as stalled."""
ROOMY = 0.1
"""Probability of full memory below which a stall is attributed to a link."""
ROUNDS = 4
PRIOR = 0.5
"""Weight of the start value relative to published rows, so that constants determined by one source stay near physics.

With a tenth of it, mixtures of a source that was left out were off by 65% instead of 28%.
"""
ROBUST = 0.1
"""Residual above which the weight decreases (pseudo-Huber)."""


def least_squares(
    residuals: Residuals,
    start: NDArray[np.float64],
    prior: float,
    robust: float = ROBUST,
    first: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Minimize robust squares by Levenberg-Marquardt; `prior` pulls to the start, `first` is the initial guess."""
    solution, damping = (start if first is None else first).copy(), 1e-2

    def cost(values: NDArray[np.float64], at: NDArray[np.float64]) -> float:
        huber = 2 * robust**2 * (np.sqrt(1 + (values / robust) ** 2) - 1)
        return float(huber.sum() + prior * ((at - start) ** 2).sum())

    values = residuals(solution)
    best = cost(values, solution)
    for _ in range(60):
        slopes = np.stack(
            [(residuals(solution + 1e-4 * unit) - values) / 1e-4 for unit in np.eye(len(solution))], axis=1
        )
        weights = 1 / np.sqrt(1 + (values / robust) ** 2)
        normal_matrix = (slopes * weights[:, None]).T @ slopes + prior * np.eye(len(solution))
        gradient = (slopes * weights[:, None]).T @ values + prior * (solution - start)
        for _ in range(8):
            damped = normal_matrix + damping * np.diag(np.diag(normal_matrix) + 1e-9)
            tried = solution + np.clip(-np.linalg.solve(damped, gradient), -0.7, 0.7)
            after = residuals(tried)
            if cost(after, tried) < best:
                break
            damping *= 4
        else:
            break
        gained = best - cost(after, tried)
        solution, values, best = tried, after, best - gained
        damping = max(damping / 5, 1e-7)
        if gained < 1e-7 * best:
            break
    return solution


def with_constants(cases: Cases, names: Sequence[str], logarithms: NDArray[np.float64]) -> Cases:
    """Return the cases with constants replaced."""
    return replace(cases, profile=replace(cases.profile, **constants_of(names, logarithms)))


def constants_of(names: Sequence[str], logarithms: NDArray[np.float64]) -> dict[str, float]:
    """Return the constants for their logarithms."""
    return dict(zip(names, np.exp(logarithms).tolist(), strict=True))


def fit_sweep(rows: Measured, keep: NDArray[np.bool_]) -> tuple[dict[str, float], Step]:
    """Fit nanotron's constants to the selected rows; return them, and the predicted step of all rows."""
    # Habits (uneven stages, network latency) are the profile's; all fitted constants start from physics.
    start = replace(PROFILES["nanotron"], **{name: getattr(START, name) for name in SWEEP_CONSTANTS}, **START_CHANCES)
    logarithms = np.log([getattr(start, name) for name in SWEEP_CONSTANTS])
    measured = np.log(rows.seconds)
    used, chances, fitted = keep.copy(), START_CHANCES, logarithms
    for _ in range(ROUNDS):
        start = replace(start, **chances)
        part = rows.where(used)
        fitted = least_squares(_residuals(part, SWEEP_CONSTANTS, start), logarithms, prior=0.05, first=fitted)
        everything = with_constants(rows.columns(start), SWEEP_CONSTANTS, fitted)
        predicted = step(everything)
        running = stalls.running(predicted.seconds, predicted.stall, predicted.stall_chance)
        stalled = measured - np.log(running) > np.log(SLOW)
        chances = count_stalls(everything, stalled, keep)
        used = keep & (np.abs(measured - np.log(predicted.seconds)) < np.log(SLOW))
    constants = constants_of(SWEEP_CONSTANTS, fitted) | chances
    everything = rows.columns(replace(start, **constants))
    return constants, step(everything)


def _residuals(rows: Measured, names: Sequence[str], profile: Profile | None = None, weight: float = 1.0) -> Residuals:
    """Return a function from the constants' logarithms to the weighted error of predicted steps.

    Stages and stall probabilities depend on none of them, and are computed once.
    """
    cases, target = rows.columns(profile), np.log(rows.seconds)
    stages = stages_of(cases)
    chance = stalls.chance(cases, stages)

    def errors(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = step(with_constants(cases, names, logarithms), stages, chance).seconds
        return (np.log(predicted) - target) * weight

    return errors


def count_stalls(c: Cases, stalled: NDArray[np.bool_], keep: NDArray[np.bool_]) -> dict[str, float]:
    """Return the stall probabilities of one link for which the expected number of stalls equals the observed one.

    Rows whose memory may be full are no evidence on links.
    """
    has_room = np.asarray(stalls.chance_of_full_memory(c, stages_of(c))) < ROOMY
    across = keep & has_room & np.asarray(stalls.crosses_nodes(c))
    reduces_whole = np.asarray(stalls.reduces_whole_gradients(c))
    groups = {"stall_of_link": across & ~reduces_whole, "stall_of_whole_gradients": across & reduces_whole}
    candidates = np.geomspace(1e-5, 0.5, 1000)
    probability_of_group = {}
    for name, group in groups.items():
        expected = (1 - (1 - candidates[:, None]) ** stalls.links(c)[group]).sum(axis=1)
        probability_of_group[name] = float(candidates[np.abs(expected - stalled[group].sum()).argmin()])
    return probability_of_group


def fit_published(sources: dict[str, Measured]) -> dict[str, float]:
    """Fit the constants that all other trainers share; a source weighs at most 60 rows."""
    logarithms = np.log([getattr(START, name) for name in PUBLISHED_CONSTANTS])
    parts = [
        _residuals(rows, PUBLISHED_CONSTANTS, weight=min(1.0, (60 / len(rows.cases)) ** 0.5))
        for rows in sources.values()
    ]
    fitted = least_squares(
        lambda x: np.concatenate([residuals(x) for residuals in parts]), logarithms, prior=PRIOR, robust=0.12
    )
    return constants_of(PUBLISHED_CONSTANTS, fitted)


def read_sources(folder: Path) -> dict[str, Measured]:
    """Read all sources of published speeds."""
    sources = {name: published(folder, name) for name in SOURCES}
    return {**sources, "vtrain": vtrain(folder), "long context": long_context(folder)}


def main() -> int:
    """Print the constants."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    rows = playbook(folder)
    rows = rows.where(np.isfinite(rows.seconds))
    constants, predicted = fit_sweep(rows, np.ones(len(rows.cases), bool))
    far = np.abs(np.log(predicted.seconds / rows.seconds)) > np.log(SLOW)
    sys.stdout.write(f"nanotron, {np.sum(~far)} of {len(far)} rows\n")
    _write(constants)
    sys.stdout.write("megatron, torchtitan, fsdp, usp-prof\n")
    _write(fit_published(read_sources(folder)))
    return 0


def _write(constants: dict[str, float]) -> None:
    sys.stdout.write("    " + ", ".join(f"{name}={value:.3g}" for name, value in constants.items()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
