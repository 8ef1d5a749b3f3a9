"""Measured runs with declared noise, for the gate's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.gate.facts import Fact, FactKind
from usp_prof.gate.measured import Damage, Measured, SeenFinding, Work
from usp_prof.gate.series import Series
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

FACTS = (
    Fact(FactKind.HARDWARE, "device", "H100"),
    Fact(FactKind.LAYOUT, "mesh", "dp=2,pp=2"),
    Fact(FactKind.LAYOUT, "world size", "4"),
    Fact(FactKind.SOFTWARE, "torch", "2.12"),
    Fact(FactKind.WORK, "tokens per step", "8192"),
)


def series(
    metric: str,
    samples: Sequence[float],
    *,
    unit: Unit = Unit.NS,
    better: Better = Better.LOWER,
    steps: Sequence[int] | None = None,
    **place: str,
) -> Series:
    numbers = tuple(range(len(samples))) if steps is None else tuple(steps)
    return Series(
        metric,
        tuple(sorted(place.items())),
        unit,
        better,
        metric.replace("_", " "),
        numbers,
        tuple(map(float, samples)),
    )


def steps(rng: np.random.Generator, *, mean: float = 1e9, noise: float = 0.01, number: int = 20) -> list[float]:
    return list(mean * (1 + rng.normal(0, noise, number)))


def measured(
    *all_series: Series,
    label: str = "run",
    facts: tuple[Fact, ...] = FACTS,
    ranks: tuple[int, ...] = (0, 1, 2, 3),
    missing: tuple[int, ...] = (),
    damage: tuple[Damage, ...] = (),
    findings: tuple[SeenFinding, ...] = (),
    work: tuple[Work, ...] = (),
) -> Measured:
    return Measured(
        label=label,
        profiler="0",
        facts=facts,
        series=tuple(all_series),
        findings=findings,
        damage=damage,
        ranks=ranks,
        missing_ranks=missing,
        work=work,
    )


def with_fact(kind: FactKind, name: str, value: str) -> tuple[Fact, ...]:
    return (*(fact for fact in FACTS if (fact.kind, fact.name) != (kind, name)), Fact(kind, name, value))
