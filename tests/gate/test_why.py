from __future__ import annotations

from gate_runs import measured, series

from usp_prof.gate.measured import Measured, SeenFinding, Work
from usp_prof.gate.why import Why, changed_work, explain, waterfall
from usp_prof.model.finding import Level
from usp_prof.report.answers.wording import why_lines

BEFORE = measured(
    series("step_time", [100e6] * 8),
    series("compute_time", [60e6] * 8),
    series("exposed_comm_time", [30e6] * 8),
    series("exposed_comm_time", [30e6] * 8, axis="dp"),
    series("idle_time", [10e6] * 8),
    series("idle_time", [10e6] * 8, cause="host"),
    work=(Work("call", "dp reduce_scatter", "4096 B", "", 5e6, 4), Work("op", "aten::mm", "[8,8]", "forward", 9e6, 2)),
)
AFTER = measured(
    series("step_time", [111e6] * 8),
    series("compute_time", [60e6] * 8),
    series("exposed_comm_time", [39e6] * 8, axis="dp"),
    series("idle_time", [12e6] * 8, cause="host"),
    work=(
        Work("call", "dp reduce_scatter", "4096 B", "", 14e6, 8),
        Work("op", "aten::bmm", "[8,8]", "forward", 1e6, 2),
    ),
    findings=(SeenFinding("X1", Level.WARNING, "Exposed gradients", "axis=dp"),),
)


def test_the_parts_add_up_to_the_step() -> None:
    why = explain(BEFORE, AFTER)
    assert [(part.name, part.delta_ns) for part in why.parts] == [("exposed dp", 9e6), ("idle host", 2e6)]
    assert sum(part.delta_ns for part in why.parts) == why.delta_ns


def test_each_reason_is_one_line() -> None:
    lines = why_lines(explain(BEFORE, AFTER))
    assert lines[0] == "+11.0 ms per step: +9.00 ms exposed dp, +2.00 ms idle: host"
    assert "+9.00 ms call dp reduce_scatter 4096 B (4 -> 8 per step)" in lines
    assert "-9.00 ms op aten::mm [8,8] in forward (removed)" in lines
    assert "+1.00 ms op aten::bmm [8,8] in forward (new, 2 per step)" in lines
    assert "new finding X1 (warning): Exposed gradients (axis dp)" in lines
    assert "finding disappeared: X1: Exposed gradients (axis dp)" in why_lines(explain(AFTER, BEFORE))


def test_a_finding_does_not_repeat_a_place_that_its_title_names() -> None:
    slow_rank = SeenFinding("slow-rank", Level.CRITICAL, "Rank 2 computes 1.78x as long as its peers", "rank=2")
    slow_op = SeenFinding("slow-op", Level.NOTE, "A product is slow", "dims=8x8 op=aten::mm")
    lines = why_lines(Why(new_findings=(slow_rank, slow_op)))
    assert lines == (
        "new finding slow-rank (critical): Rank 2 computes 1.78x as long as its peers",
        "new finding slow-op (note): A product is slow (dims 8x8, op aten::mm)",
    )


def test_the_collective_that_causes_most_is_named() -> None:
    def run(exposed: float, scatter: float, reduce: float) -> Measured:
        kinds = [("all_reduce", reduce), ("reduce_scatter", scatter)]
        times = [series("comm_time", [ns + 2e6], axis="dp", collective=kind, steps=[-1]) for kind, ns in kinds]
        hidden = [series("hidden_comm_time", [2e6], axis="dp", collective=kind, steps=[-1]) for kind, _ in kinds]
        overall = (series("step_time", [100e6] * 8), series("exposed_comm_time", [exposed] * 8, axis="dp"))
        return measured(*times, *hidden, *overall)

    (part,) = explain(run(10e6, 5e6, 5e6), run(19e6, 13e6, 6e6)).parts
    assert (part.name, part.mostly) == ("exposed dp", "reduce_scatter")
    assert (
        "+9.00 ms exposed dp (mostly reduce_scatter)"
        in why_lines(explain(run(10e6, 5e6, 5e6), run(19e6, 13e6, 6e6)))[0]
    )
    (part,) = explain(run(10e6, 5e6, 5e6), run(19e6, 5e6, 5e6)).parts
    assert part.mostly == ""


def test_work_is_matched_by_shape_and_place() -> None:
    small, large = (Work("op", "aten::mm", shape, "forward", 1e6, 1) for shape in ("[1]", "[2]"))
    changes = changed_work((small,), (large,), 0)
    assert [(change.shape, change.delta_ns) for change in changes] == [("[1]", -1e6), ("[2]", 1e6)]


def test_the_waterfall_has_only_the_parts() -> None:
    assert waterfall(BEFORE) == (("compute", 60e6), ("exposed dp", 30e6), ("idle host", 10e6))
