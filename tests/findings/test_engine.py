from __future__ import annotations

import inspect
import json
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from made_faults import run_of, run_with
from made_pairs import PLAIN

import usp_prof.findings.rules
from usp_prof.cli.app import main
from usp_prof.findings import all_rules, find, find_all, rule
from usp_prof.findings.rules import NAMES
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis, Level
from usp_prof.model.selection import Assumptions, Selection
from usp_prof.replay.step_times import unedited
from usp_prof.whatif.edits.kind import MODEL_DOUBT
from usp_prof.whatif.outcome import FLOOR_ERROR

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = {
    "slow_rank": "slow-rank",
    "slow_link": "slow-link",
    "late_input": "late-input",
    "gc_pause": "host-pause",
}


@pytest.mark.parametrize(("fault", "code"), EXPECTED.items())
def test_the_fault_is_the_first_finding(fault: str, code: str) -> None:
    first = find(run_with(fault).tables)[0]
    assert first.code == code
    assert first.gain_fraction > 0.01
    if fault in ("slow_rank", "late_input"):
        assert first.where["rank"] == 1


SHORT = dict.fromkeys(("forward_ns", "input_gradient_ns", "weight_gradient_ns"), 100_000) | {"input_ns": 100_000}
HOSTS = {
    "memory-pressure": {"kind": "device_allocation", "delay_ns": 4_000_000},
    "unfused-optimizer": {"kind": "unfused_optimizer", "factor": 1500.0},
    "slow-host": {"kind": "slow_host", "factor": 4.0},
}


@pytest.mark.parametrize("code", HOSTS)
def test_the_cause_of_a_slow_host_precedes_host_bound(code: str) -> None:
    declared = {"mesh": {"dp": 4}, "speed": SHORT, "shape": {"layers": 2}, "work": {"micro_batches": 8}}
    run = run_of(json.dumps(declared | {"faults": [{"rank": 1, **HOSTS[code]}]}))
    codes = [finding.code for finding in find(run.tables) if finding.code != "late-rank"]  # the same rank again
    assert codes[:2] == [code, "host-bound"]


@pytest.mark.parametrize("fault", ["slow_rank", "gc_pause"])
def test_the_gain_equals_the_gain_of_the_repair(fault: str) -> None:
    first = find(run_with(fault).tables)[0]
    faulty, clean = (unedited(run_with(name).tables).mean_measured_ns for name in (fault, "clean"))
    assert first.gain_fraction == pytest.approx(1 - clean / faulty, abs=0.01)


def test_a_modeled_gain_has_the_error_of_its_model() -> None:
    declared = {"mesh": {"dp": 4}, "work": {"micro_batches": 2}}
    fault = {"rank": 1, "kind": "unfused_optimizer", "factor": 3000.0}
    faulty, clean = (run_of(json.dumps(declared | {"faults": faults})).tables for faults in ([fault], []))
    unfused = next(finding for finding in find(faulty) if finding.code == "unfused-optimizer")
    true_gain = 1 - unedited(clean).mean_measured_ns / unedited(faulty).mean_measured_ns
    assert unfused.basis is Basis.MODELLED
    assert unfused.error_fraction >= MODEL_DOUBT * unfused.gain_fraction > FLOOR_ERROR
    assert unfused.gain_fraction == pytest.approx(true_gain, abs=unfused.error_fraction)


def test_a_clean_run_has_opportunities_only() -> None:
    assert {finding.level for finding in find(run_with("clean").tables)} <= {Level.NOTE}


def test_a_clean_cpu_run_has_no_machine_fault() -> None:
    codes = {finding.code for finding in find(run_with("clean", "gloo").tables)}
    assert not codes & {"slow-rank", "late-input", "host-pause", "host-bound", "stage-imbalance"}


def test_cumulative_gains_grow_but_are_not_sums() -> None:
    findings = find(run_with("slow_rank").tables)
    together = [finding.cumulative_gain_fraction for finding in findings]
    assert together == sorted(together)
    assert together[-1] <= sum(finding.gain_fraction for finding in findings) + 1e-9


def test_findings_change_with_assumptions() -> None:
    tables = run_of(json.dumps(PLAIN)).tables
    assert "slow-op" in [finding.code for finding in find(tables)]
    on_small_device = tables.assuming(Assumptions(device="T4"))  # a high rate for a small device
    assert "slow-op" not in [finding.code for finding in find(on_small_device)]


def test_a_selection_leaves_other_ranks_out() -> None:
    codes = [finding.code for finding in find(run_with("slow_rank").tables, Selection(ranks=(0,)))]
    assert "slow-rank" not in codes


def _classes(name: str) -> list[tuple[str, type]]:
    return inspect.getmembers(import_module(f"usp_prof.findings.rules.{name}"), inspect.isclass)


def test_every_rule_is_listed_and_has_its_page() -> None:
    modules = [module.name for module in pkgutil.iter_modules(usp_prof.findings.rules.__path__)]
    classes = {f"{name}.{own}" for name in modules for own, rule_class in _classes(name) if hasattr(rule_class, "CODE")}
    assert classes == set(NAMES)
    for listed_rule in all_rules():
        for heading in (
            "What it finds",
            "Why it costs time",
            "What to do",
            "How the gain is predicted",
            "When it is wrong",
        ):
            assert heading in (listed_rule.__doc__ or ""), (listed_rule.CODE, heading)
        page = " ".join((listed_rule.__doc__ or "").split())
        for trainer in ("torchtitan", "Megatron-LM", "nanotron", "DeepSpeed", "our trainer"):
            assert trainer in page, (listed_rule.CODE, trainer)
        assert rule(listed_rule.CODE) is listed_rule
    assert len({listed_rule.CODE for listed_rule in all_rules()}) == len(all_rules())


def test_an_unknown_code_names_similar_ones() -> None:
    with pytest.raises(UsageError) as error:
        rule("slow-rnk")
    assert "slow-rank" in error.value.hint


def test_no_rule_is_skipped_on_a_complete_run() -> None:
    assert find_all(run_with("clean").tables).skipped == ()


def test_explain_prints_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "slow-rank"]) == 0
    assert "How the gain is predicted" in capsys.readouterr().out
    assert main(["explain"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {rule.CODE} " in output for rule in all_rules())


def test_whatif_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run_with("slow_rank").path)
    cache = ["--cache-dir", str(tmp_path), "-q"]
    assert main(["whatif", path, "--edit", "rank_as_peers=1", "--edit", "no_pauses", *cache]) == 0
    out = capsys.readouterr().out
    assert "rank 1 performs like its peers, no host pauses" in out
    assert "gain together" in out
    assert main(["whatif", path, "--edit", "rank_as_peers=1", "--format", "json", *cache]) == 0
    assert '"gain_fraction"' in capsys.readouterr().out
    assert main(["whatif", path, "--list", *cache]) == 0
    assert "comm_hidden" in capsys.readouterr().out
    assert main(["whatif", path, *cache]) == 2
    assert "hint:" in capsys.readouterr().err
