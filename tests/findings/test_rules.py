"""Findings raised by each rule, and not raised, on runs with declared ground truth."""

from __future__ import annotations

import pytest
from made_faults import run_of, run_with
from tiny import Trace, table_set

from usp_prof.analyses import breakdown
from usp_prof.contract import Manifest
from usp_prof.findings import find
from usp_prof.findings.rules.exposed_communication import ExposedTensorParallel
from usp_prof.findings.rules.hosts import HostBound
from usp_prof.findings.rules.links import SmallMessages
from usp_prof.findings.rules.pipelines import StageImbalance
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.replay.step_times import unedited
from usp_prof.tables import calls
from usp_prof.whatif.predict import predict

NO_OVERLAP = '{"work": {"overlap_dp": false}, "mesh": {"dp": 4}, "network": {"axis_bytes_per_second": {"dp": 2e10}}}'
OVERLAP = NO_OVERLAP.replace("false", "true")
HEAVY_HEAD = '{"speed": {"head_ns": 800000}}'


def _codes(text: str) -> dict[str, float]:
    return {finding.code: finding.gain_fraction for finding in find(run_of(text).tables)}


def test_gradient_sync_without_overlap_is_found_with_the_gain_of_overlap() -> None:
    gain_of_code = _codes(NO_OVERLAP)
    without, overlapped = (unedited(run_of(text).tables).mean_measured_ns for text in (NO_OVERLAP, OVERLAP))
    assert gain_of_code["exposed-gradient-sync"] == pytest.approx(1 - overlapped / without, abs=0.03)
    assert "exposed-gradient-sync" not in _codes(OVERLAP)


def test_the_gain_of_exposed_tp_is_at_most_its_exposed_time() -> None:
    tables = run_of('{"mesh": {"tp": 2, "dp": 2}}').tables
    (draft,) = ExposedTensorParallel.look(tables)
    exposed_ns = sum(
        figure.value
        for figure in breakdown.compute(tables).values()
        if figure.metric.id == "exposed_comm_time" and figure.dims == {"axis": "tp"}
    )
    gain = predict(tables, [draft.edit]).gain_fraction
    assert draft.basis is Basis.BOUND
    assert 0 < gain <= exposed_ns / unedited(tables).mean_measured_ns + 0.01


def test_without_the_axis_no_tensor_parallel_communication_is_exposed() -> None:
    assert list(ExposedTensorParallel.look(run_with("clean").tables)) == []


def test_a_heavy_last_stage_is_an_imbalance() -> None:
    first = find(run_of(HEAVY_HEAD).tables)[0]
    assert (first.code, first.where["stage"], first.basis) == ("stage-imbalance", 1, Basis.BOUND)
    assert first.gain_fraction > 0.1


def test_a_slow_rank_is_not_a_stage_imbalance() -> None:
    assert list(StageImbalance.look(run_with("slow_rank").tables)) == []


def test_without_a_manifest_peers_are_ranks_with_the_same_work() -> None:
    first = find(run_with("slow_rank", described=False).tables)[0]
    assert (first.code, first.where["rank"]) == ("slow-rank", 1)


@pytest.mark.parametrize(("ran", "other"), [("1F1B", "ZB-H1"), ("GPipe", "1F1B"), ("1F1B", "GPipe")])
def test_another_schedule_is_predicted_as_it_runs(ran: str, other: str) -> None:
    runs = {
        name: run_of(f'{{"mesh": {{"pp": 4}}, "work": {{"micro_batches": 8, "schedule": "{name}"}}}}')
        for name in (ran, other)
    }
    predicted = predict(runs[ran].tables, [Edit("schedule", other)])
    assert predicted.after_ns == pytest.approx(unedited(runs[other].tables).mean_measured_ns, rel=0.03)


def test_a_trace_without_steps_is_one_step() -> None:
    trace = Trace()
    for number in range(20):
        trace.kernel("gemm", number * 100_000 + 10_000, 10_000, launch_at=number * 100_000)
    tables = table_set({0: trace})
    assert set(tables.columns("steps", 0).codes("source")[1]) == {"window"}
    (finding,) = find(tables)
    assert finding.code == "host-bound"
    assert finding.gain_fraction == pytest.approx(19 * 90 / (19 * 100 + 10), abs=0.02)


def test_messages_that_layers_wait_for_cannot_be_bucketed() -> None:
    tables = run_of('{"mesh": {"tp": 2, "dp": 2}}').tables
    assert calls.match_calls(tables).columns().matches("axis", "tp").sum() > 10 * len(tables.columns("steps", 0))
    assert [draft for draft in SmallMessages.look(tables) if draft.where == {"axis": "tp"}] == []


def test_a_few_small_messages_are_not_a_finding() -> None:
    assert list(SmallMessages.look(run_with("clean").tables)) == []


@pytest.mark.parametrize(("processes", "findings"), [(1, 1), (2, 0)])
def test_a_device_of_several_processes_is_not_host_bound(processes: int, findings: int) -> None:
    """It idles for one of them while it works for another."""
    trace = Trace().step(0, 0, 1_000).kernel("gemm", 100, 10, launch_at=50).kernel("gemm", 900, 10, launch_at=850)
    tables = table_set({0: trace}, Manifest(processes_per_device=processes))
    assert len(list(HostBound.look(tables))) == findings
