"""Values of all ranks that the host reads within the step, on ranks without a device: `blocking-sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.findings import find
from usp_prof.findings.rules.blocked_host import BlockingSync
from usp_prof.replay.step_times import unedited

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US = 1_000
SLOW, FAST = 3_000, 1_000
"""How long a pass computes, in us: the ranks take turns, so that each sum waits for another one."""


def run(passes: int, *, read: bool) -> TableSet:
    """Make two ranks that compute some passes, sum the loss after each, and read it or not."""
    traces = {rank: Trace(rank, 2, device="cpu").group("1", [0, 1], "mesh_log") for rank in range(2)}
    begin, number = 0, 0
    for step in range(3):
        at = [begin, begin]
        for turn in range(passes):
            for rank, trace in traces.items():
                length = SLOW if (turn + rank) % 2 else FAST
                trace.op("aten::mm", at[rank], length * US, dims=[[64, 64], [64, 64]], types=["float", "float"])
                at[rank] += (length + 20) * US
            end = max(at) + 100 * US
            for rank, trace in traces.items():
                sent = {"dims": (1,), "group": "1", "sequence": number, "posted_at": at[rank] - 10 * US}
                trace.gloo("all_reduce", at[rank], end - at[rank], **sent)
                if read:
                    at[rank] = end + 20 * US
                    trace.op("aten::item", at[rank], 2 * US)
                at[rank] += 10 * US
            number += 1
        following = max(at) + 200 * US
        for trace in traces.values():
            trace.step(step, begin, following - begin)
        begin = following
    return table_set(traces, Manifest(device="cpu"))


def test_values_read_in_each_pass_are_found_with_the_gain_of_not_reading() -> None:
    tables, free = run(4, read=True), run(4, read=False)
    first = find(tables)[0]
    assert (first.code, first.evidence["waits_per_step"]) == ("blocking-sync", 3)  # of four, the last may stay
    before, after = (unedited(tables_of_run).mean_measured_ns for tables_of_run in (tables, free))
    assert first.gain_fraction == pytest.approx(1 - after / before, abs=0.06)


def test_one_value_per_step_may_be_read() -> None:
    assert list(BlockingSync.look(run(1, read=True))) == []


def test_an_unread_sum_does_not_block() -> None:
    assert list(BlockingSync.look(run(4, read=False))) == []
