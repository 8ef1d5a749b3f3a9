"""Unmatched communication: its waits may be due to any rank, so they are part of the error of a repair."""

from __future__ import annotations

from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.whatif.predict import predict

US = 1_000
USUAL, LATE, TRANSFER = 200 * US, 900 * US, 100 * US


def _rank(rank: int, computes: int) -> Trace:
    """Compute, then exchange with the other rank by a kernel that does not name it; the host runs ahead."""
    trace = Trace(rank, 2)
    for step in range(4):
        host, at = 60 * US * step, 500 * US + (LATE + TRANSFER) * step
        trace.step(step, host, 60 * US)
        trace.kernel("work", at, computes, launch_at=host + 10 * US)
        trace.collective("send", at + computes, LATE + TRANSFER - computes, described=False, launch_at=host + 40 * US)
    return trace


def test_the_error_of_a_repair_includes_waits_for_unknown_ranks() -> None:
    prediction = predict(table_set({0: _rank(0, LATE), 1: _rank(1, USUAL)}), [Edit("rank_as_peers", "0")])
    saved = (LATE - USUAL) / (LATE + TRANSFER)
    assert prediction.gain_fraction < 0.6 * saved
    assert prediction.gain_fraction + prediction.error_fraction >= 0.95 * saved


def test_an_edit_of_all_ranks_has_no_such_error() -> None:
    tables = table_set({0: _rank(0, LATE), 1: _rank(1, USUAL)})
    assert predict(tables, [Edit("no_input_wait", "")]).error_fraction < 0.05
