"""Kernels during communication, compared with the same kernels alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from made import part, run, step, work

from usp_prof.findings.rules.contention import SlowedCompute
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NodeKind
from usp_prof.tables.relations import Relations
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

ALONE, BESIDE = 100_000, 150_000


SHAPE, OTHER_SHAPE = "[[64, 64], [64, 64]]", "[[64, 96], [96, 64]]"


def _tables(beside: int, shape_alone: str = SHAPE, shape_beside: str = SHAPE) -> TableSet:
    """Return five kernels alone and five during one long communication, all with the same name and grid."""
    activities, kernels, at = [], [], 0
    ops = [{"event": 201, "name": "aten::mm", "input_dims": shape_alone},
           {"event": 202, "name": "aten::mm", "input_dims": shape_beside}]  # fmt: skip
    for number in range(10):
        length = beside if number >= 5 else ALONE
        activities.append(
            work("compute", at, at + length, event=number + 1, lane="stream 7", launch_event=100 + number)
        )
        op = 202 if number >= 5 else 201
        kernels.append({"event": number + 1, "name": "compute", "start_ns": at, "dur_ns": length, "kind": "compute",
                        "blocks": 8, "threads_per_block": 64, "op_event": op, "launch_event": number})  # fmt: skip
        at += length
    talk = (5 * ALONE, at)
    activities.append(
        work(
            "communication", *talk, "dp", event=50, lane="stream 20", launch_event=150, collective=0, name="ncclKernel"
        )
    )
    return run(
        {
            0: {
                "activities": sorted(activities, key=lambda row: row["start_ns"]),
                "kernels": kernels,
                "ops": ops,
                "collectives": [part("all_reduce", *talk, event=50)],
                "steps": [step(0, 0, at)],
            }
        }
    )


def test_slowed_kernels_are_found_with_the_time_they_lose() -> None:
    tables = _tables(BESIDE)
    (draft,) = SlowedCompute.look(tables)
    assert draft.evidence["ratio"] == pytest.approx(1.5)
    assert draft.evidence["kernels"] == 5
    gain = predict(tables, [draft.edit]).gain_fraction
    assert 0 <= gain <= 5 * (BESIDE - ALONE) / (5 * BESIDE + 5 * ALONE) + 1e-9


def test_without_interference_each_kernel_is_as_fast_as_alone() -> None:
    tables = _tables(BESIDE)
    graph = as_recorded(tables).then(tables, parse_edit("no_interference")).graph
    compute = graph.nodes.kind == NodeKind.COMPUTE
    talk = graph.nodes.kind == NodeKind.COMMUNICATION
    assert graph.duration[compute].tolist() == [ALONE] * 10
    assert graph.duration[talk].tolist() == [5 * BESIDE]


def test_kernels_without_shapes_cannot_be_compared() -> None:
    """It said that nothing would be saved."""
    with pytest.raises(UsageError, match="the shapes of their ops are unknown"):
        predict(_tables(BESIDE, "", ""), [parse_edit("no_interference")])


def test_the_rows_that_prove_it_are_the_slowed_kernels() -> None:
    tables = _tables(BESIDE)
    (draft,) = SlowedCompute.look(tables)
    rows = Relations(tables).answer(draft.rows).to_pylist()
    assert [row["dur_ns"] for row in rows] == [BESIDE] * 5


def test_kernels_at_full_speed_are_not_a_finding() -> None:
    assert list(SlowedCompute.look(_tables(ALONE))) == []


@pytest.mark.parametrize("shapes", [(SHAPE, OTHER_SHAPE), ("", ""), ("[[], []]", "[[], []]")])
def test_kernels_of_one_grid_are_not_compared_unless_their_shapes_are_known_and_equal(shapes: tuple[str, str]) -> None:
    """Persistent kernels have one block per SM for any matrix size."""
    assert list(SlowedCompute.look(_tables(BESIDE, *shapes))) == []
