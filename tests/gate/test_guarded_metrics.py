from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses import NAMES
from usp_prof.checking import analyses_for, check_run, measured, read_terms
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.gate.judgment import Verdict
from usp_prof.gate.measured import Baseline, save
from usp_prof.gate.policy import Policy, policy_from
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def test_only_analyses_that_rules_need_are_requested() -> None:
    nothing = policy_from({"defaults": False})
    assert analyses_for(nothing) == ("step_time", "breakdown", "overlap")
    pipeline = policy_from({"defaults": False, "rule": [{"match": "bubble_fraction", "allowed": "1pp"}]})
    assert analyses_for(pipeline) == ("step_time", "breakdown", "overlap", "pipeline")
    memory = policy_from({"defaults": False, "rule": [{"match": "peak_memory*", "allowed": "1%"}]})
    assert analyses_for(memory) == ("step_time", "breakdown", "overlap", "memory")
    bound = policy_from({"defaults": False, "min": {"mfu": 0.3}})
    assert "mfu" in analyses_for(bound)
    axis = policy_from({"defaults": False, "rule": [{"match": "idle_fraction[cause=*]", "allowed": "1pp"}]})
    assert analyses_for(axis) == ("step_time", "breakdown", "overlap")


def test_the_default_policy_skips_analyses_that_it_does_not_need() -> None:
    analyses = analyses_for(Policy())
    assert {"step_time", "breakdown", "overlap", "pipeline", "kernels", "mfu", "memory"} <= set(analyses) < set(NAMES)


def test_a_check_without_unneeded_analyses_has_the_same_result(tmp_path: Path) -> None:
    work = {"steps": 8, "micro_batches": 2, "schedule": "1F1B"}
    for seed in (1, 2):
        write(Declaration.from_dict({"mesh": {"dp": 2, "pp": 2}, "seed": seed, "work": work}), tmp_path / str(seed))
    first, second = (open_run(tmp_path / str(seed), cache_dir=tmp_path / "cache") for seed in (1, 2))
    save(Baseline((measured(first),)), tmp_path / "b.json")
    (tmp_path / "p.toml").write_text('findings = "none"\n')
    full = read_terms(str(tmp_path / "b.json"))
    narrow = read_terms(str(tmp_path / "b.json"), str(tmp_path / "p.toml"))
    assert check_run(second, full).judgements == check_run(second, narrow).judgements
    assert check_run(second, narrow).verdict is Verdict.PASS
