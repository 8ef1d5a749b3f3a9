from __future__ import annotations

import json
import re

import numpy as np
import pytest
from gate_runs import measured, series, steps, with_fact

from usp_prof.analyses.step_time import median_step_ns
from usp_prof.gate.comparison import compare, direction
from usp_prof.gate.facts import FactKind
from usp_prof.gate.series import with_derived
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.comparison import FORMATS, render, verdict, waterfall
from usp_prof.report.answers.wording import change, interval
from usp_prof.report.document import Chart, KeyFigures

RNG = np.random.default_rng(21)
A = measured(
    series("step_time", steps(RNG, mean=1e8)),
    series("compute_time", steps(RNG, mean=6e7), better=Better.NEITHER),
    series("idle_time", steps(RNG, mean=4e7), cause="host"),
    series("mfu", steps(RNG, mean=0.4), unit=Unit.FRACTION, better=Better.HIGHER),
    series("bubble_fraction", [0.1] * 8, unit=Unit.FRACTION),
    label="a",
)
B = measured(
    series("step_time", steps(RNG, mean=1.1e8)),
    series("compute_time", steps(RNG, mean=7e7), better=Better.NEITHER),
    series("idle_time", steps(RNG, mean=4e7), cause="host"),
    series("mfu", steps(RNG, mean=0.44), unit=Unit.FRACTION, better=Better.HIGHER),
    label="b",
)
OTHER = measured(
    series("step_time", steps(RNG, mean=2e8)),
    series("mfu", steps(RNG, mean=0.4), unit=Unit.FRACTION, better=Better.HIGHER),
    label="other",
    facts=with_fact(FactKind.HARDWARE, "device", "A100"),
    ranks=(0, 1, 2),
)


def test_each_change_has_a_direction() -> None:
    (pair,) = compare([A, B]).pairs
    assert {judgment.key: direction(judgment) for judgment in pair.judgements} == {
        "bubble_fraction": "",
        "compute_time": "changed",
        "idle_time[cause=host]": "within noise",
        "mfu": "better",
        "step_time": "worse",
    }
    assert [part.name for part in pair.waterfall] == ["compute", "idle host"]


def test_unchanged_exact_metrics_are_the_same() -> None:
    runs = [measured(series("collective_calls", [12.0], unit=Unit.COUNT, steps=[-1])) for _ in range(2)]
    ((judged,),) = (pair.judgements for pair in compare(runs).pairs)
    assert direction(judged) == "same"


def test_small_mfu_values_are_compared_as_ratios() -> None:
    """A CPU run reaches 0.2% of its peak. Half of that is half the speed, not a tenth of a point."""
    runs = [
        measured(series("mfu", steps(RNG, mean=mean), unit=Unit.FRACTION, better=Better.HIGHER))
        for mean in (2e-3, 1e-3)
    ]
    ((judged,),) = (pair.judgements for pair in compare(runs).pairs)
    assert direction(judged) == "worse"


def test_times_near_zero_are_compared_by_difference() -> None:
    """An idle time of 5 us in a step of 100 ms that becomes 40 us is +35 us, not +700%."""
    runs = [
        measured(
            series("step_time", steps(RNG, mean=1e8)),
            series("idle_time", [idle] * 8, cause="sync"),
            series("wait_time", [wait] * 8),
        )
        for idle, wait in ((5e3, 5e6), (4e4, 4e7))
    ]
    judged = {judgment.key: judgment for pair in compare(runs).pairs for judgment in pair.judgements}
    assert change(judged["idle_time[cause=sync]"]) == "+35.0 μs"
    assert change(judged["wait_time"]) == "+700%"


def test_an_undetermined_change_is_not_shown() -> None:
    wild = np.array([1e6, 5e7, 2e5, 9e7, 4e6, 3e5])
    runs = [
        measured(series("step_time", steps(RNG, mean=1e8)), series("wait_time", wild * factor)) for factor in (1, 1.3)
    ]
    judged = {judgment.key: judgment for pair in compare(runs).pairs for judgment in pair.judgements}
    assert (change(judged["wait_time"]), interval(judged["wait_time"])) == ("-", "too wide")


def test_the_headline_compares_the_step_of_the_job() -> None:
    runs = [
        measured(series("step_time", steps(RNG, mean=mean)), series("job_step_time", steps(RNG, mean=1.1 * mean)))
        for mean in (1e8, 2e8)
    ]
    (pair,) = compare(runs).pairs
    assert re.match(
        r"The step of b is [\d.]+% longer than that of a \(1[01]\d ms before, 2[12]\d ms", verdict(pair, "a", "b")
    )


def test_the_steps_are_those_of_the_reports() -> None:
    lengths = [[4e8, 2e8, 1.6e8], [1e8, 1e8, 3e8]]
    runs = [
        measured(series("step_time", ns), series("job_step_time", ns), series("compute_time", ns), label=label)
        for label, ns in zip("ab", lengths, strict=True)
    ]
    (pair,) = compare(runs).pairs
    shown = {judgment.key: (judgment.before, judgment.after) for judgment in pair.judgements}
    assert shown["job_step_time"] == (median_step_ns(lengths[0]), median_step_ns(lengths[1])) == (2e8, 1e8)
    assert shown["step_time"] == (pytest.approx(7.6e8 / 3), pytest.approx(5e8 / 3))
    (compute,) = pair.waterfall
    assert (compute.before_ns, compute.after_ns) == shown["step_time"]
    assert verdict(pair, "a", "b") == (
        "The steps of a and b differ by less than their noise: 200 ms before, 100 ms after."
    )
    figures = next(block for block in waterfall(pair, "a", "b").blocks if isinstance(block, KeyFigures))
    assert figures.figures[-1].second == "within noise"


def test_a_change_within_noise_is_that_between_the_two_figures() -> None:
    """The reports leave two outliers out, so that the first run has the shorter median and the longer mean."""
    lengths = [[58.4e6, 58.6e6, 58.6e6, 61.5e6, 62.5e6], [58.7e6, 59.0e6, 59.2e6, 60.9e6, 61.3e6]]
    (pair,) = compare([measured(series("job_step_time", ns)) for ns in lengths]).pairs
    (judgment,) = pair.judgements
    assert (judgment.before, judgment.after) == (58.6e6, 59.2e6)
    assert judgment.change == pytest.approx(59.2 / 58.6 - 1)
    assert judgment.low < judgment.change < judgment.high


def test_rates_are_those_of_the_reports() -> None:
    """A report divides the work of all steps by their time, which a mean over the steps' rates is not."""
    lengths = [76.4e6, 60.0e6, 44.1e6]
    rates = [series("mfu", [2e7 / ns for ns in lengths], unit=Unit.FRACTION, better=Better.HIGHER)]
    tokens = series("tokens_per_second", [136_000], steps=[-1], unit=Unit.PER_SECOND, better=Better.HIGHER)
    run = measured(*with_derived([series("step_time", lengths), tokens, *rates]))
    (pair,) = compare([run, run]).pairs
    before = {judgment.key: judgment.before for judgment in pair.judgements}
    assert before["mfu"] == pytest.approx(2e7 / (sum(lengths) / 3))
    assert before["tokens_per_second"] == pytest.approx(136_000)


def test_only_comparable_metrics_are_judged() -> None:
    comparison = compare([A, B, OTHER])
    assert [pair.label for pair in comparison.pairs] == ["b", "other"]
    assert "mfu" in comparison.keys
    other = comparison.pairs[1]
    assert {direction(judgment) for judgment in other.judgements} == {""}
    assert "rank 3 missing" in other.doubts[0]
    step = next(judgment for judgment in other.judgements if judgment.key == "step_time")
    assert step.after > step.before
    across = compare([A, OTHER], (FactKind.HARDWARE,)).pairs[0]
    assert direction(next(judgment for judgment in across.judgements if judgment.key == "step_time")) == "worse"


@pytest.mark.parametrize(
    ("kind", "name", "value", "doubt"),
    [
        (FactKind.HARDWARE, "device", "A100", "another device (H100 -> A100): times, rates and shares"),
        (FactKind.WORK, "tokens per step", "1", "tokens per step 8192 -> 1: times and amounts"),
    ],
)
def test_differences_in_hardware_and_work_are_stated(kind: FactKind, name: str, value: str, doubt: str) -> None:
    other = measured(*B.series, label="other", facts=with_fact(kind, name, value))
    (pair,) = compare([A, other]).pairs
    assert pair.doubts == (f"{doubt} are not compared",)
    assert verdict(pair, "a", "other").startswith("The mean rank steps of a and other are not comparable: ")
    (accepted,) = compare([A, other], (kind,)).pairs
    assert accepted.doubts == ()
    assert verdict(accepted, "a", "other").startswith("The mean rank step of other is ")


@pytest.mark.parametrize(("across", "is_divided"), [((), False), ((FactKind.HARDWARE,), True)])
def test_steps_on_different_devices_are_divided_into_parts_only_on_request(
    across: tuple[FactKind, ...], *, is_divided: bool
) -> None:
    (pair,) = compare([A, OTHER], across).pairs
    section = waterfall(pair, "a", "other")
    assert any(isinstance(block, Chart) for block in section.blocks) is is_divided
    assert ("difference ms" in render(compare([A, OTHER], across), "terminal")) is is_divided


def test_another_model_is_stated_without_its_sizes() -> None:
    runs = [
        measured(*A.series, facts=with_fact(FactKind.WORK, "model", f'{{"layers": {layers}}}')) for layers in (2, 4)
    ]
    (pair,) = compare(runs).pairs
    assert pair.doubts == ("another model: times and amounts are not compared",)


def test_another_layout_or_library_is_comparable() -> None:
    other = measured(*B.series, label="other", facts=with_fact(FactKind.LAYOUT, "mesh", "dp=4"))
    newer = measured(*B.series, label="newer", facts=with_fact(FactKind.SOFTWARE, "torch", "3.0"))
    assert [pair.doubts for pair in compare([A, other, newer]).pairs] == [(), ()]


def test_a_comparison_is_written_in_every_format() -> None:
    comparison = compare([A, B, OTHER])
    for form in FORMATS:
        assert "step_time" in render(comparison, form).replace("\\", "")  # Markdown escapes underscores
    text = render(comparison, "terminal")
    assert re.search(r"hardware +device +H100 +A100", text), "conditions that differ"
    assert "idle_time[cause=host]" not in text
    assert "idle_time[cause=host]" in render(comparison, "terminal", everything=True)
    assert json.loads(render(comparison, "json"))["pairs"][0]["label"] == "b"


def test_a_narrow_screen_still_states_what_each_metric_shows() -> None:
    text = render(compare([A, B]), "terminal", width=80)
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["step_time"]]
    assert line.split()[-1] == "worse"
    assert "columns not shown: interval" in text


def test_two_spellings_of_a_data_type_are_no_difference() -> None:
    short = measured(label="short", facts=with_fact(FactKind.WORK, "dtype", "bf16"))
    long = measured(label="long", facts=with_fact(FactKind.WORK, "dtype", "bfloat16"))
    half = measured(label="half", facts=with_fact(FactKind.WORK, "dtype", "fp16"))
    assert compare([short, long]).pairs[0].differences == ()
    assert [difference.name for difference in compare([short, half]).pairs[0].differences] == ["dtype"]
