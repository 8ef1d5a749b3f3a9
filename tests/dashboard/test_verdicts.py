"""Sentence of each page: it matches the report's figures, and is empty without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drawn import naming

from dashboard import data, report
from dashboard.answers import pictures, verdicts
from dashboard.pages.sections import most_exposed_first
from usp_prof import open_run
from usp_prof.analyses import kernels
from usp_prof.api.sentences import time_of_ops
from usp_prof.charts.inputs import Ground, MemoryLine, MemoryLines, RankBars, RankGrid
from usp_prof.model.finding import Basis, Finding
from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.document import Chart, DataTable, Section
from usp_prof.report.figures import Figures
from usp_prof.report.verdict import LateRank, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.report.document import Document


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def slow_rank(run_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Document]:
    with naming([run_folder.with_name("recorded-slow-rank")], cache, monkeypatch):
        yield data.document(0, EVERYTHING)


def finding(title: str, gain: float, error: float, basis: Basis = Basis.REPLAYED) -> Finding:
    return Finding(title, title, {}, {}, gain_fraction=gain, error_fraction=error, basis=basis)


def test_the_late_rank_is_named_with_its_cost(slow_rank: Document) -> None:
    text = verdicts.ranks(slow_rank)
    assert text.startswith("Rank 2 delays the others by 768 ms per step (43.0% of the mean rank step). Repairing it ")
    assert "Cause: " in text


def test_pipeline_communication_is_not_described_as_collectives(slow_rank: Document) -> None:
    values = [
        Value(Metric(name, Unit.NS, Better.LOWER, "", "", dims), value, dict.fromkeys(dims, "pp"))
        for name, dims, value in (
            ("compute_time", (), 60e6), ("exposed_comm_time", ("axis",), 40e6), ("wait_time", ("axis",), 10e6),
            ("transfer_time", ("axis",), 30e6),
        )
    ]  # fmt: skip
    text = verdicts.communication(replace(slow_rank, values=tuple(values)))
    assert "25.0% of the time in pp sends and receives is waiting for the other side, the rest is transfer" in text


def test_the_rank_that_delays_an_axis_is_named_by_its_delay(slow_rank: Document) -> None:
    """Of two ranks, "rank 0 arrives last in 50.0% of its dp collectives" says nothing."""
    late = (LateRank(0, "dp", "host", 2.56e6, 0.5),)
    document = replace(slow_rank, verdict=replace(slow_rank.verdict, late_ranks=late))
    sentence = "Rank 0 delays dp collectives most: by 2.56 ms per step, summed over its calls."
    assert verdicts.communication(document).endswith(sentence)


def test_a_rank_that_never_arrives_last_has_no_share_in_the_straggler_table(slow_rank: Document) -> None:
    late = (LateRank(2, "dp", "slow compute", 2e8, 0.9), LateRank(1, "dp", "slow link", 1e8, 0.0))
    table = pictures.late_ranks(replace(slow_rank, verdict=replace(slow_rank.verdict, late_ranks=late)))
    assert table is not None
    assert [row[3] for row in table.rows] == [0.9, None]


@pytest.mark.parametrize("delay_ns", [0.0, 40.0])
def test_ranks_without_a_notable_delay_are_not_drawn(slow_rank: Document, delay_ns: float) -> None:
    cost = Metric("straggler_cost", Unit.NS, Better.LOWER, "", "", ("rank",))
    step = Metric("step_time", Unit.NS, Better.LOWER, "", "", ())
    values = (Value(step, 1e9, {}), *(Value(cost, delay_ns * rank, {"rank": rank}) for rank in range(4)))
    assert pictures.lateness(replace(slow_rank, values=values)) is None


def test_pages_and_python_describe_figures_in_the_same_words(slow_rank: Document) -> None:
    run = data.open_numbered(0)
    assert verdicts.ranks(slow_rank).startswith(run.stragglers().sentence)
    assert run.memory().sentence in verdicts.memory(slow_rank)
    assert (
        verdicts.OF_PAGE["timeline"](slow_rank) == verdicts.OF_PAGE["overview"](slow_rank) == slow_rank.verdict.sentence
    )


def judged(document: Document, *findings: Finding) -> str:
    """Return the verdict on a run with these findings."""
    return verdict_of(Figures(document.values), findings).sentence


def waiting(document: Document, *times_ms: float) -> Document:
    """Build ranks with this idle time for their host in a step of 100 ms."""
    idle = Metric("idle_time", Unit.NS, Better.LOWER, "Idle", "", ("rank", "cause"))
    compute = Metric("compute_time", Unit.NS, Better.LOWER, "Compute", "", ())
    values = [Value(idle, time * 1e6, {"rank": rank, "cause": "host"}) for rank, time in enumerate(times_ms)]
    mean = sum(times_ms) / len(times_ms)
    values += [Value(idle, mean * 1e6, {"cause": "host"}), Value(compute, (100 - mean) * 1e6)]
    return replace(document, values=tuple(values))


def test_a_device_that_waits_much_longer_for_its_host_than_the_mean_is_named(slow_rank: Document) -> None:
    assert "rank 3 waits 40.0 ms, the mean is 13.0 ms" in verdicts.host(waiting(slow_rank, 4, 4, 4, 40))
    assert " waits " not in verdicts.host(waiting(slow_rank, 12, 13, 14, 13))
    # The mean costs little, but one rank waits: its host was called busy while the first finding was about it.
    text = verdicts.host(waiting(slow_rank, *(0.1,) * 30, 10))
    assert text.startswith("Few devices wait for their host: rank 30 waits 10.0 ms, the mean is ")
    assert text.endswith(" (0.4% of the mean rank step).")
    # Far from the mean, but nothing that costs.
    assert " waits " not in verdicts.host(waiting(slow_rank, 0.1, 0.1, 0.1, 1))


def test_much_idle_time_in_few_launches_is_explained(slow_rank: Document) -> None:
    empty = Metric("empty_queue_fraction", Unit.FRACTION, Better.LOWER, "", "", ())
    idle, busy = waiting(slow_rank, 40, 40), waiting(slow_rank, 1, 1)
    text = verdicts.host(replace(idle, values=(*idle.values, Value(empty, 0.017))))
    assert text.endswith("; the gaps are few and long: 1.7% of all launches find an empty queue.")
    for document, share in ((idle, 0.4), (busy, 0.017)):
        assert "few and long" not in verdicts.host(replace(document, values=(*document.values, Value(empty, share))))


def test_the_picture_of_the_host_marks_the_rank_that_the_sentence_names(slow_rank: Document) -> None:
    chart = pictures.idle_for_host(waiting(slow_rank, 4, 4, 4, 40))
    assert chart is not None
    assert isinstance(chart.data, RankBars)
    assert chart.data.apart == ("rank 3",)
    many = pictures.idle_for_host(waiting(slow_rank, *(number / 2 for number in range(1, 101))))
    assert many is not None
    assert isinstance(many.data, RankBars)
    # In the order of ranks, the rank that the sentence names was below the first screen.
    assert many.data.labels == tuple(f"rank {rank}" for rank in range(99, 99 - pictures.MOST_RANKS, -1))
    assert many.title.endswith(f"longest {pictures.MOST_RANKS} of 100")


def test_the_picture_of_the_host_has_all_the_idle_time_of_its_sentence(slow_rank: Document) -> None:
    document = waiting(slow_rank, 10, 10, 10, 30)
    idle = next(value.metric for value in document.values if value.metric.id == "idle_time")
    after_sync = [Value(idle, 5e6, {"rank": rank, "cause": "sync"}) for rank in range(4)]
    values = (*document.values, *after_sync, Value(idle, 5e6, {"cause": "sync"}))
    document = replace(document, values=values)
    assert "(14.3% waiting for launches, 4.8% after a synchronization)" in verdicts.host(document)
    chart = pictures.idle_for_host(document)
    assert chart is not None
    assert isinstance(chart.data, RankBars)
    assert chart.data.values == (15e6, 15e6, 15e6, 35e6)
    assert chart.data.even == (20e6,) * 4


def test_bars_of_changes_have_the_edits_of_their_findings(slow_rank: Document) -> None:
    change = replace(finding("rank 2 is late", 0.3, 0.05), edit="rank_as_peers=2")
    picture = pictures.gains(replace(slow_rank, findings=(finding("no change for this", 0.5, 0.0), change)))
    assert picture is not None
    assert picture[1] == {"rank 2 performs like its peers": "rank_as_peers=2"}
    assert pictures.gains(replace(slow_rank, findings=())) is None


def test_the_timeline_of_a_report_opens_on_the_straggler(slow_rank: Document) -> None:
    assert slow_rank.verdict.straggler == 2
    assert '"focus":2,' in report.ask(0, EVERYTHING).result()


@pytest.mark.parametrize(("basis", "gain"), [(Basis.REPLAYED, "30.0% ±5.0%"), (Basis.BOUND, "at most 30.0% ±5.0%")])
def test_every_page_names_the_first_cause_and_its_gain(slow_rank: Document, basis: Basis, gain: str) -> None:
    """If the gain was an upper limit, Overview named a cause, and the others claimed that there is none."""
    change = replace(finding("rank 2 is late", 0.3, 0.05, basis), edit="rank_as_peers=2")
    document = replace(slow_rank, findings=(change,), verdict=verdict_of(Figures(slow_rank.values), (change,)))
    assert verdicts.of_run(document).endswith(f"rank 2 is late. Fixing this saves {gain} of the step.")
    assert verdicts.suggestions(document) == f"Start here: rank 2 is late. Fixing this saves {gain} of the step."
    assert verdicts.whatif(document).endswith(
        f"The change to try first saves {gain} of the step: rank 2 performs like its peers."
    )
    nothing = replace(slow_rank, findings=(), verdict=verdict_of(Figures(slow_rank.values), ()))
    none = "No finding is certain to save more than 2.0% of the step."
    assert all(page(nothing).endswith(none) for page in (verdicts.of_run, verdicts.suggestions, verdicts.whatif))


def test_every_sentence_is_one_or_none(slow_rank: Document) -> None:
    for page, sentence in verdicts.OF_PAGE.items():
        text = sentence(slow_rank)
        assert not text or text.endswith("."), page
        assert "nan" not in text, page


def test_without_figures_nothing_is_claimed(slow_rank: Document) -> None:
    nothing = replace(slow_rank, values=(), findings=(), sections=(), verdict=verdict_of(Figures(()), ()))
    assert judged(nothing) == verdicts.ranks(nothing) == verdicts.communication(nothing) == ""
    assert verdicts.pipeline(nothing) == verdicts.kernels(nothing) == verdicts.host(nothing) == ""


def test_a_single_rank_does_not_show_stragglers(slow_rank: Document) -> None:
    alone = replace(slow_rank, values=(), run=replace(slow_rank.run, ranks=(3,)))
    assert verdicts.ranks(alone) == "Stragglers are unknown: only rank 3 was read."
    assert "no call was recorded on more than one of its ranks" in verdicts.ranks(replace(slow_rank, values=()))


def test_the_verdict_names_the_first_notable_cause_in_the_reports_order(slow_rank: Document) -> None:
    doubtful, certain = finding("doubtful", 0.4, 0.39), finding("certain", 0.2, 0.01)
    text = judged(slow_rank, doubtful, certain)
    assert text.endswith("certain. Fixing this saves 20.0% ±1.0% of the step.")
    bound = finding("cores are shared", 0.5, 0.0, Basis.BOUND)
    text = judged(slow_rank, bound, certain)
    assert text.endswith("cores are shared. Fixing this saves at most 50.0% of the step.")


def test_memory_that_was_not_recorded_is_predicted(slow_rank: Document) -> None:
    unknown = replace(slow_rank, values=())
    assert verdicts.memory(unknown).startswith("Memory was not recorded")
    calibration = data.ask_calibration(0).result()
    text = verdicts.memory(unknown, calibration)
    assert text.startswith("Predicted, not measured: the fullest rank needs ")
    assert text.endswith("the size of its device is unknown.")
    roomy = replace(calibration, cluster=replace(calibration.cluster, memory_bytes=80 * 2.0**30))
    text = verdicts.memory(unknown, roomy)
    assert text.startswith("Predicted, not measured: it fits. ")
    assert text.endswith("and tensors can fill 73.6 GiB.")
    tiny = replace(calibration, cluster=replace(calibration.cluster, memory_bytes=1024.0))
    assert "it does not fit" in verdicts.memory(unknown, tiny)


def test_a_predicted_peak_is_compared_with_the_measured_one(slow_rank: Document) -> None:
    """A line at 79 MiB stood below a curve of 141 MiB without a word."""
    calibration = data.ask_calibration(0).result()
    predicted_bytes = calibration.prediction.footprint.total_bytes
    sizes = np.full(2, predicted_bytes * 2)
    curve = Section("memory", "", (Chart("", MemoryLines((MemoryLine("rank 0", np.arange(2), sizes, sizes),))),))
    peak = Metric("peak_memory", Unit.BYTES, Better.LOWER, "Peak memory", "")
    for values, ending in (((Value(peak, predicted_bytes * 2),), ", 50.0% below the measured one"), ((), "iB")):
        chart = pictures.memory_over_time(replace(slow_rank, sections=(curve,), values=values), calibration)
        assert chart is not None
        assert isinstance(chart.data, MemoryLines)
        assert chart.data.levels[0][0].endswith(ending)


def test_the_largest_op_is_named_as_recorded(slow_rank: Document) -> None:
    text = verdicts.kernels(replace(slow_rank, values=()), {"aten::add": 40, "aten::mm": 60})
    assert text == "aten::mm takes 60.0% of unpaced device time, more than any other op."


def test_kernels_without_a_roofline_are_compared_with_the_peak_rate(slow_rank: Document) -> None:
    """The sentence named the roofline, and a remark on the same page said that the bandwidth is unknown."""
    efficiency = Metric("kernel_efficiency", Unit.FRACTION, Better.HIGHER, "Kernel efficiency", "", ())
    document = replace(slow_rank, values=(Value(efficiency, 0.122, {}),))
    paced = "Unpaced kernels" if document.run.paced else "Kernels"
    assert verdicts.kernels(document) == f"{paced} reach 12.2% of the roofline."
    assert verdicts.kernels(document, has_roofline=False) == f"{paced} reach 12.2% of the device's peak FLOP rate."


def test_the_sentence_on_memory_names_the_rank_of_the_key_figure(slow_rank: Document) -> None:
    """With equal peaks, the sentence named the last rank and the key figure the first."""
    peak = Metric("peak_memory", Unit.BYTES, Better.LOWER, "Peak memory", "", ("rank",))
    equal = tuple(Value(peak, 2.0**27, {"rank": rank}) for rank in (0, 1))
    assert "Rank 0 has the highest peak" in verdicts.memory(replace(slow_rank, values=equal))


def test_the_op_that_the_sentence_names_is_the_first_bar(slow_rank: Document) -> None:
    """A paced wait was named as the op with most device time."""
    times = time_of_ops(kernels.compute(data.open_numbered(0).tables).ops)
    assert slow_rank.run.paced
    assert all(op.startswith("aten::") for op in times)
    bars = pictures.of_kernels(slow_rank, times)[0].data
    assert isinstance(bars, RankBars)
    assert verdicts.kernels(slow_rank, times).startswith(f"{bars.labels[0]} takes ")
    assert pictures.of_kernels(replace(slow_rank, sections=()), {}) == ()


def test_a_late_rank_without_a_cause_is_part_of_the_finding_that_includes_it(slow_rank: Document) -> None:
    cause = finding("ranks share the cores of a host", 0.5, 0.05)
    part = replace(finding("rank 2 is late", 0.2, 0.05), where={"rank": 2}, part_of=0)
    unexplained = replace(slow_rank.verdict, late_ranks=(LateRank(2, "dp", "unknown", 1e8, 0.9),))
    doubtful = replace(slow_rank, verdict=unexplained, findings=(cause, part))
    assert "cause" not in verdicts.ranks(doubtful)
    assert verdicts.larger_cause(doubtful) == "Part of a larger cause: ranks share the cores of a host."
    assert verdicts.larger_cause(replace(doubtful, findings=())) == "The trace does not show why the rank is late."
    assert verdicts.larger_cause(slow_rank) == ""


def test_groups_of_the_axis_that_the_sentence_names_come_first(slow_rank: Document) -> None:
    exposed = {
        value.dims["axis"]: value.value
        for value in slow_rank.values
        if value.metric.id == "exposed_comm_time" and set(value.dims) == {"axis"}
    }
    worst = max(exposed, key=lambda axis: exposed[axis])
    labels = {0: "elsewhere 0-1", 1: f"{worst} 0-1", 2: f"{worst} 2-3"}
    assert most_exposed_first(labels, slow_rank) == [1, 2, 0]


def test_a_step_without_findings_has_a_verdict_without_findings(slow_rank: Document) -> None:
    assert "No finding is certain" in judged(slow_rank)


def test_the_picture_of_ranks_is_darkest_at_the_culprit(slow_rank: Document) -> None:
    chart = pictures.lateness(slow_rank)
    assert chart is not None
    assert isinstance(chart.data, RankGrid)
    assert chart.data.ground is Ground.NOTHING
    assert chart.data.rank.flat[int(np.nanargmax(chart.data.values_ns))] == 2


def test_the_pipeline_names_the_schedule_that_saves_most(slow_rank: Document) -> None:
    bubble = Metric("bubble_fraction", Unit.FRACTION, Better.LOWER, "Bubble", "", ())
    offered = [
        replace(finding("interleaved", 0.09, 0.02), edit="schedule=interleaved,v=2"),
        replace(finding("more", 0.30, 0.29), edit="schedule=same,m=4"),
        replace(finding("slow rank", 0.50, 0.01), edit="rank_as_peers=2"),
    ]
    document = replace(slow_rank, values=(Value(bubble, 0.4, {}),), findings=tuple(offered))
    assert verdicts.pipeline(document).endswith(
        "The best change is predicted to save 9.0% \u00b12.0% of the step: interleaved schedule (2 stages per rank)."
    )
    assert "save" not in verdicts.pipeline(replace(document, findings=tuple(offered[2:])))


def test_the_table_of_stragglers_has_the_lateness_of_the_sentence() -> None:
    document = open_run(Path(__file__).parents[2] / "traces" / "recorded-5d").report().document
    table = next(block for block in document.summary.blocks if isinstance(block, DataTable) and "Strag" in block.title)
    heads = [column.head for column in table.columns]
    rows = {row[0]: dict(zip(heads, row, strict=True)) for row in table.rows}
    for late in document.verdict.late_ranks[:3]:
        assert (rows[late.rank]["axis"], rows[late.rank]["arrives last"]) == (late.axis, late.late_fraction)


def test_without_a_mesh_lateness_claims_no_place_in_it(slow_rank: Document) -> None:
    """The title named the mesh, and the only row was labeled "from rank 0"."""
    with_mesh = pictures.lateness(slow_rank)
    without_mesh = pictures.lateness(replace(slow_rank, sections=()))
    assert with_mesh is not None
    assert without_mesh is not None
    assert with_mesh.title == "Own delay of each rank per step, by its place in the mesh"
    assert without_mesh.title == "Own delay of each rank per step"
    assert isinstance(without_mesh.data, RankGrid)
    assert without_mesh.data.rows == ("",)
