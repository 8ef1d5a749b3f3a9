"""Gradients: when they are complete, and the time of reductions that shared a link."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.backward import ACCUMULATES, accumulated
from usp_prof.whatif.edits.overlap import fair_shares
from usp_prof.whatif.predict import predict

US = 1_000


def _trace(rank: int, *, shapes: bool = True) -> Trace:
    """Two concurrent reductions after a backward pass whose first gradient, two thirds of all, was complete early."""
    trace = Trace(rank=rank, world=2, device="cpu").group("0", [0, 1], "mesh_dp")
    for step in range(2):
        at = step * 110 * US
        trace.step(step, at, 110 * US)
        trace.mark("train::forward", at, 20 * US).op("aten::mm", at, 20 * US)
        trace.mark("train::backward", at + 20 * US, 40 * US)
        for begin, end in ((20, 24), (24, 40), (40, 60)):
            trace.op("aten::mm", at + begin * US, (end - begin) * US)
        for when, size in ((23, 40), (59, 20)):
            trace.op(ACCUMULATES, at + when * US, 10, dims=[[size, 10]] if shapes else None, thread=300)
        for thread, size in ((200, 400), (201, 200)):
            trace.gloo(
                "all_reduce",
                at + 60 * US,
                30 * US,
                dims=(size,),
                thread=thread,
                posted_at=at + 60 * US,
                group="0",
                sequence=2 * step + thread - 200,
            )
        trace.mark("train::optimizer", at + 90 * US, 10 * US).op("aten::add_", at + 90 * US, 10 * US)
    return trace


def test_accumulation_determines_when_a_share_of_gradients_is_complete() -> None:
    gradients = accumulated(table_set(_trace(0)), 0)
    first = gradients.completed(np.array([0.5, 0.66, 0.9, 1.0]), 0, 0)
    assert (first - first[0]).tolist() == [0, 0, 36 * US, 36 * US]
    assert not len(gradients.completed(np.array([1.0]), 7, 0)), "a step in which none is seen"


def test_without_shapes_all_gradients_count_equally() -> None:
    gradients = accumulated(table_set(_trace(0, shapes=False)), 0)
    assert gradients.elements.tolist() == [1] * 4


def test_reductions_that_shared_the_link_are_overlapped_in_sequence() -> None:
    tables = table_set({rank: _trace(rank) for rank in range(2)})
    prediction = predict(tables, [parse_edit("sync_overlapped,axis=dp")])
    # Each had half of the 30 us. The first hides in backward from 24 on; the second begins at 60 and ends at 75.
    assert prediction.before_ns == 110 * US
    assert abs(prediction.after_ns - 95 * US) <= US


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_fair_shares_add_up_to_the_time_with_any_reduction(pairs: list[tuple[int, int]]) -> None:
    start = np.array([begin * 720_720 for begin, _ in pairs])
    end = start + np.array([length * 720_720 for _, length in pairs])
    shares = fair_shares(start, end)
    covered = {moment for begin, length in pairs for moment in range(begin, begin + length)}
    assert abs(int(shares.sum()) - len(covered) * 720_720) <= len(pairs)
    assert (shares <= end - start).all()
    alone = [
        all(end[i] <= start[j] or end[j] <= start[i] for j in range(len(pairs)) if i != j) for i in range(len(pairs))
    ]
    assert (shares[alone] == (end - start)[alone]).all()
