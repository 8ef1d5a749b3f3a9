"""Words shared by the writers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from papers import FINDING, facts

from usp_prof.findings.causes import Cause
from usp_prof.model.finding import Basis, ChangedPart, Finding
from usp_prof.model.health import HealthRow, Severity
from usp_prof.report.document import Findings
from usp_prof.report.words import finding_lines, health_lines, lines_of_findings, ranks_phrase, run_lines, spans


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0, 2-3, 7"), ((5, 6), "5-6")]
)
def test_consecutive_numbers_are_written_as_spans(numbers: tuple[int, ...], text: str) -> None:
    assert spans(numbers) == text


def test_missing_ranks_are_reported() -> None:
    assert ranks_phrase(facts(ranks=(0, 1, 3), world_size=4)) == "3 of 4 ranks (0-1, 3)"
    assert ranks_phrase(facts(ranks=(0, 1), world_size=None)) == "2 ranks"
    assert ranks_phrase(facts(ranks=(0,), world_size=1)) == "1 rank"


def test_the_run_states_its_axes_devices_and_steps() -> None:
    lines = run_lines(facts(axes={"dp": 2, "tp": 4}, hosts=2, steps=(3, 4)))
    assert lines == ["a run", "8 ranks, dp=2 tp=4", "NVIDIA A100 on 2 hosts; steps 3-4"]


def test_unknown_facts_of_a_run_are_stated() -> None:
    lines = run_lines(facts(axes={}, devices=(), steps=()))
    assert lines[1:] == [
        "8 ranks, parallel axes unknown",
        "device not recorded; steps unknown: the whole trace is one window",
    ]
    assert "one window" in run_lines(facts(steps=(0,), step_source="window"))[2]
    assert run_lines(facts(axes={"dp": 8}, axes_inferred=True))[1].endswith("(inferred)")


def test_model_pacing_and_other_runs_are_reported() -> None:
    text = "\n".join(run_lines(facts(model="llama", paced=True, other_runs=("b", "c", "d", "e", "f"))))
    assert "model llama" in text
    assert "paced" in text
    assert "5 other runs here: b, c, d, e and 1 more (--run NAME|all)" in text


def test_a_finding_states_place_gain_basis_and_advice() -> None:
    first, gain, advice = finding_lines(FINDING, 0.0)
    assert first == "Rank 6 arrives last at tp collectives"
    assert gain == "saves 9.8% \u00b11.5% of the step (replayed; 12.0% together with the findings above)"
    assert advice == "Look at the clocks of that GPU."


@pytest.mark.parametrize(
    ("title", "where", "further"),
    [
        ("Rank 16 is late", {"rank": 6, "axis": "tp", "stages": 2}, " (rank 6, axis tp)"),
        ("Rank 3 computes 1.40x as long as its peers", {"rank": 3}, ""),
        ("Rank 13 is late", {"rank": 3}, " (rank 3)"),
        ("Transfers among ranks 9,13 (ep) take longer", {"axis": "ep", "group": "30@9,13"}, ""),
        ("aten::mm takes 29% of compute", {"op": "aten::mm"}, ""),
        ("The pipeline bubble is 42.9%", {"stages": 2}, ""),
        ("2 micro-batches are too few for 4 pipeline ranks", {"axis": "pp"}, ""),
        ("Tensor parallelism spans hosts and leaves the fast links", {"axis": "tp"}, ""),
        ("Rank 0 does 2.02x the mean work of its expert group", {"axis": "ep"}, ""),
        ("Micro-batches differ in length", {"axis": "dp"}, " (axis dp)"),
    ],
)
def test_a_place_that_the_title_lacks_is_in_parentheses(title: str, where: dict[str, int | str], further: str) -> None:
    assert finding_lines(replace(FINDING, title=title, where=where))[0] == f"{title}{further}"


def test_a_finding_that_adds_no_gain_to_those_above_says_so() -> None:
    first, second = FINDING, replace(FINDING, code="late-input", basis=Basis.BOUND)
    causes, rest = lines_of_findings(Findings((Cause(first), Cause(second)), rest=(second,)))
    assert causes[0] == (first, finding_lines(first, 0.0))
    assert causes[1][1][1] == "saves at most 9.8% \u00b11.5% of the step (adds nothing to the findings above)"
    assert rest[0][1][1] == "saves at most 9.8% \u00b11.5% of the step"


def test_further_findings_state_their_root_cause_or_that_they_are_noise() -> None:
    first, part = FINDING, replace(FINDING, code="late-input", part_of=0)
    noise = replace(FINDING, code="host-pause", error_fraction=2 * FINDING.gain_fraction)
    _, rest = lines_of_findings(Findings((Cause(first, (part,)),), rest=(part, noise)))
    assert [lines[-1] for _, lines in rest] == ["same root cause as finding 1", "within measurement noise"]


def test_a_finding_without_gain_claims_none() -> None:
    assert finding_lines(Finding("X001", "Something", {}, {}, basis=Basis.BOUND)) == ["Something"]


def test_health_states_where_and_how_often() -> None:
    rows = [HealthRow("lost", Severity.DATA_LOSS, 3, 1200, "bytes"), HealthRow("odd", Severity.INFO, file="a.json")]
    assert health_lines(rows) == [
        (Severity.DATA_LOSS, "lost x1,200 (rank 3): bytes"),
        (Severity.INFO, "odd (a.json)"),
    ]


def test_lost_bytes_do_not_count_as_occurrences() -> None:
    """A truncated file was shown as `truncated x249`, because 249 bytes of it were dropped."""
    rows = [HealthRow("truncated", Severity.DATA_LOSS, 1, 249, "the file ends early")]
    assert health_lines(rows) == [(Severity.DATA_LOSS, "truncated (rank 1): the file ends early")]


def test_equal_problems_of_several_ranks_are_one_line() -> None:
    rows = [HealthRow("no_base", Severity.INFO, rank, 1, "none") for rank in (0, 1, 2, 5)]
    assert health_lines(rows) == [(Severity.INFO, "no_base (ranks 0-2, 5): none")]


def test_axes_of_collectives_are_named_where_the_mesh_is_unknown() -> None:
    lines = run_lines(facts(axes={}, axes_seen=("tp", "ep")))
    assert lines[1] == "8 ranks, parallel layout unknown (collectives on tp, ep)"


def test_a_gain_that_is_not_one_part_of_the_step_shows_what_the_change_affects() -> None:
    shorter = replace(FINDING, step_ns=100e6, changed=(ChangedPart("comm:tp", 40e6, 30e6),))
    assert "exposed tp 40.0 ms -> 30.0 ms" in finding_lines(shorter)
    vanished = replace(shorter, changed=(ChangedPart("comm:tp", 10e6, 0.0),))
    assert not any("->" in line for line in finding_lines(vanished))
    several = replace(vanished, changed=(*vanished.changed, ChangedPart("idle:host", 1e6, 3e6)))
    assert "exposed tp 10.0 ms -> 0 ns, idle: host 1.00 ms -> 3.00 ms" in finding_lines(several)


def test_a_gain_without_recording_names_its_step() -> None:
    lines = finding_lines(replace(FINDING, step_ns=49.6e6, without_recording=True))
    assert lines[1].startswith("saves 9.8% ±1.5% of the 49.6 ms step without recording (replayed")


def test_a_gain_with_its_error_is_at_most_the_whole_step() -> None:
    uncertain = replace(FINDING, gain_fraction=0.884, error_fraction=0.385)
    assert finding_lines(uncertain)[1].startswith("saves 88.4% (49.9% to 100.0%) of the step")
