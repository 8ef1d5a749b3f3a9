"""Consistency of figures on one screen: lateness, repairs, the job's slowdown, and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from corpus_sets import TRACES

from usp_prof import open_run
from usp_prof.cli.app import main
from usp_prof.findings.engine import found_in, repairs_in
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.step_times import unedited
from usp_prof.report.answers.whatif import whatif_section
from usp_prof.report.document import Stack, Text
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.run import Run

OWN = Path(__file__).parents[2] / "traces"
SETS = [
    *(OWN / name for name in ("gpu-nccl-zero3", "recorded-slow-rank", "recorded-ep-imbalance", "recorded-5d")),
    *(TRACES / name for name in ("megatron-tp2-v100", "megatron-tp8-a100", "torchrec-4r-v100", "param-dlrm-8r")),
]


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    if not request.param.is_dir():
        pytest.skip("the corpus of real traces is not here")
    return open_run(request.param, cache_dir=tmp_path)


def test_equal_ranks_save_at_least_what_repairing_one_rank_saves(run: Run) -> None:
    search_result = found_in(run.tables)
    assert repr(search_result.repairs) == repr(repairs_in(run.tables))  # NaN is not equal to itself
    assert search_result.ideal is not None
    for repair in search_result.repairs:
        if not repair.disagrees and search_result.ideal.slowdown is not None:
            assert search_result.ideal.slowdown >= 1 / (1 - repair.gain_fraction) - 1e-9


def test_no_finding_names_a_rank_whose_repair_is_unknown(run: Run) -> None:
    search_result = found_in(run.tables)
    unknown = {repair.rank for repair in search_result.repairs if repair.disagrees}
    assert not [
        finding for finding in search_result.findings if finding.edit in {f"rank_as_peers={rank}" for rank in unknown}
    ]
    assert len(unknown) == sum(row.code == "replay_disagrees" for row in search_result.skipped)


def test_a_prediction_of_an_unknown_repair_says_so(run: Run) -> None:
    for repair in found_in(run.tables).repairs:
        prediction = predict(run.tables, [Edit("rank_as_peers", str(repair.rank))])
        texts = [block.text for block in whatif_section([prediction], prediction).blocks if isinstance(block, Text)]
        assert any("is unknown" in text for text in texts) == repair.disagrees


def test_the_sentence_and_the_findings_state_one_gain(run: Run) -> None:
    search_result = found_in(run.tables)
    sentence = run.stragglers().sentence
    for repair in search_result.repairs[:1]:
        assert sentence.startswith(f"Rank {repair.rank} ")
        if repair.disagrees:
            assert sentence.endswith("what its repair saves is unknown.")
        same = [
            finding
            for finding in search_result.findings
            if finding.code == "late-rank" and finding.where.get("rank") == repair.rank
        ]
        assert all(finding.gain_fraction == pytest.approx(repair.gain_fraction) for finding in same)


def test_a_rank_that_performs_like_its_peers_makes_no_step_longer(run: Run) -> None:
    """An earlier start of a rank's recording used to lengthen its first step, for a gain of -2.8%."""
    if len(set(unedited(run.tables).step.tolist())) < 2:
        pytest.skip("the length of a single step depends on when each rank's recording begins")
    for rank in run.ranks:
        try:
            gain = predict(run.tables, [Edit("rank_as_peers", str(rank))]).gain_fraction
        except UsageError:  # it has no peers
            continue
        assert gain > -0.01, rank


def test_a_prediction_has_one_step_in_all_its_parts(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["whatif", str(run.path), "--edit", "rank_as_peers=0", "--format", "json", "--cache-dir", str(tmp_path)]
    if main(words) == 2:  # rank 0 has no peers
        return
    written = json.loads(capsys.readouterr().out)
    predicted = written["prediction"]["together"]
    (step,) = [metric["value"] for metric in written["metrics"] if metric["id"] == "step_time" and not metric["dims"]]
    if "window" not in {row["code"] for row in written["health"]}:
        assert step == pytest.approx(predicted["after_ns"], rel=0.01)
    saved = 1 - predicted["after_ns"] / predicted["before_ns"]
    assert predicted["gain_fraction"] == pytest.approx(saved)


def test_a_rank_with_a_longer_part_of_the_sequence_is_not_said_to_be_slow(tmp_path: Path) -> None:
    """With contiguous parts and a causal mask, the last rank of the ring has the most attention."""
    if not (ring := TRACES / "gloo" / "cp4-ring-contig-4r").is_dir():
        pytest.skip("the corpus of real traces is not here")
    tables = open_run(ring, cache_dir=tmp_path).tables
    (late,) = (finding for finding in found_in(tables).findings if finding.where.get("rank") == 3)
    assert late.title == "Rank 3 is late for cp sends and receives: it has more work"
    assert "clocks" not in late.advice


def test_the_parts_of_a_finding_start_at_the_bar(run: Run) -> None:
    (stack,) = (block for block in run.report().document.summary.blocks if isinstance(block, Stack))
    shown = {part.role: part.value for part in stack.parts}
    for finding in found_in(run.tables).findings:
        assert all(part.before_ns == pytest.approx(shown.get(part.role, 0.0)) for part in finding.changed)
