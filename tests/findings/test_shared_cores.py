"""Ranks that share a host's cores: one cause, with late ranks below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.findings import find
from usp_prof.findings.causes import causes_of
from usp_prof.findings.rules.contention import SharedCores
from usp_prof.run import open_run
from usp_prof.tables.relations import Relations

if TYPE_CHECKING:
    from usp_prof.findings.draft import Draft
    from usp_prof.tables.table_set import TableSet

RECORDED = Path(__file__).parents[2] / "traces"
SHARED = Manifest(device="cpu", processes_per_device=2)
US = 1_000


def on_cores(manifest: Manifest, *, taken_off: float, steps: int = 3, ops: int = 12) -> TableSet:
    """Make two ranks whose equal ops take 100 us; a share of them stops for a millisecond in the middle."""
    chance = Random(7)  # noqa: S311 - the same each time
    traces = {}
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2, device="cpu").group("0", [0, 1], "dp")
        at = 0
        for step in range(steps):
            begin = at
            for _ in range(ops):
                length = 1_100 * US if chance.random() < taken_off else 100 * US
                trace.op("aten::mm", at, length, dims=[[64, 64], [64, 64]], types=["float", "float"])
                at += length + 10 * US
            at = (step + 1) * 20_000 * US
            trace.step(step, begin, at - begin)
    return table_set(traces, manifest)


def drafts(tables: TableSet) -> list[Draft]:
    return list(SharedCores.look(tables))


def test_interrupted_ops_indicate_shared_cores() -> None:
    (draft,) = drafts(on_cores(SHARED, taken_off=0.3))
    assert draft.evidence["processes_per_host"] == 2
    # About 3 of 10 ops take a millisecond longer than their median of 0.1 ms.
    assert draft.evidence["beyond_median_fraction"] == pytest.approx(0.75, abs=0.05)
    assert str(draft.edit) == "ideal"


def test_the_rows_that_prove_it_are_the_ops_that_stopped() -> None:
    tables = on_cores(SHARED, taken_off=0.3)
    (draft,) = drafts(tables)
    rows = Relations(tables).answer(draft.rows).to_pylist()
    assert {row["dur_ns"] for row in rows} == {1_100 * US}


def test_regular_ops_have_no_finding() -> None:
    assert drafts(on_cores(SHARED, taken_off=0.0)) == []


@pytest.mark.parametrize(
    "manifest",
    [replace(SHARED, processes_per_device=1), replace(SHARED, paced=True), replace(SHARED, device="H100-SXM")],
    ids=["one rank a host", "paced", "devices"],
)
def test_ranks_that_do_not_share_cores_have_no_finding(manifest: Manifest) -> None:
    assert drafts(on_cores(manifest, taken_off=0.3)) == []


def test_a_rank_that_is_slow_in_every_op_does_not_indicate_shared_cores() -> None:
    """Each op is compared with its own median on its rank."""
    trace = {rank: Trace(rank, 2, device="cpu") for rank in range(2)}
    for rank, trace_of_rank in trace.items():
        trace_of_rank.step(0, 0, 20_000 * US)
        for number in range(12):
            trace_of_rank.op("aten::mm", number * 1_000 * US, (1 + rank * 4) * 100 * US, dims=[[64, 64], [64, 64]])
    assert drafts(table_set(trace, SHARED)) == []


@pytest.mark.slow
def test_late_ranks_of_the_recorded_run_are_its_effects(tmp_path: Path) -> None:
    """Sixteen ranks on two cores: shared cores are the first finding and include the late rank, but not the choices."""
    findings = find(open_run(RECORDED / "recorded-5d", cache_dir=tmp_path).tables)
    first, *other_causes = causes_of(findings).causes
    assert first.finding.code == SharedCores.CODE
    assert {part.code for part in first.parts} == {"late-rank"}
    assert not {"late-rank", "slow-rank", "slow-link"} & {cause.finding.code for cause in other_causes}


@pytest.mark.parametrize("run", ["recorded-slow-rank", "recorded-1f1b", "recorded-ep-imbalance"])
def test_paced_runs_have_no_shared_cores_finding(run: str, tmp_path: Path) -> None:
    assert drafts(open_run(RECORDED / run, cache_dir=tmp_path).tables) == []
