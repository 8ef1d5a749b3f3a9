"""Results that depend on the user's assumptions follow them, whenever they are set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planned import LLAMA_8B

from usp_prof import open_run
from usp_prof.analyses import NAMES
from usp_prof.model.selection import NOTHING_ASSUMED, Assumptions
from usp_prof.report.build import analyze

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

RUN = Path(__file__).parents[2] / "traces" / "gpu-bf16"
ASSUMED = {
    "model": Assumptions(model=LLAMA_8B),
    "tokens_per_step": Assumptions(tokens_per_step=1_000_000),
    "device": Assumptions(device="NVIDIA B200"),
    "convention": Assumptions(convention="causal"),
    "peak_flops": Assumptions(peak_flops=5e15),
}
CHANGED = {
    "model": {"mfu"},
    "tokens_per_step": {"mfu", "step_time"},
    "device": {"mfu", "kernels"},
    "convention": {"mfu"},
    "peak_flops": {"mfu", "kernels"},
}
"""Analyses whose figures each assumption changes."""


def figures(tables: TableSet) -> dict[str, list[tuple[str, float]]]:
    results = analyze(tables)
    return {name: [(str(value.metric.id), value.value) for value in results[name].values()] for name in NAMES}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> TableSet:
    return open_run(RUN, cache_dir=tmp_path_factory.mktemp("cache")).tables


@pytest.mark.parametrize("assumption", ASSUMED)
def test_assumptions_invalidate_earlier_results(assumption: str, tables: TableSet) -> None:
    plain = figures(tables)
    after = figures(tables.assuming(ASSUMED[assumption]))
    fresh = figures(open_run(RUN).tables.assuming(ASSUMED[assumption]))
    assert repr(after) == repr(fresh)
    changed = {name for name in NAMES if repr(after[name]) != repr(plain[name])}
    assert changed >= CHANGED[assumption] - {"step_time"}
    assert figures(tables) == plain or repr(figures(tables)) == repr(plain)


def test_a_table_set_keeps_its_assumptions(tables: TableSet) -> None:
    other = tables.assuming(ASSUMED["device"])
    assert tables.assumptions == NOTHING_ASSUMED
    assert other.assumptions == ASSUMED["device"]
    with pytest.raises(AttributeError):
        other.assumptions = NOTHING_ASSUMED  # type: ignore[misc]
