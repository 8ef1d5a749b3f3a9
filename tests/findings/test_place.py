"""A finding names a rank only if this rank spends much more time than all others."""

from __future__ import annotations

import json

import pytest
from made_faults import run_of

from usp_prof.findings.place import outstanding_rank, place_of
from usp_prof.findings.search import search


@pytest.mark.parametrize(
    ("spent", "place"),
    [
        ({0: 5.0, 1: 0.0, 2: 0.0}, {"rank": 0}),
        ({0: 5.0, 1: 12.0, 2: 6.0}, {"rank": 1}),
        ({0: 5.0, 1: 6.0, 2: 5.5}, {}),
        ({0: 5.0, 1: 5.0, 2: 0.0, 3: 0.0}, {"ranks": "0-1"}),
        ({7: 5.0}, {"rank": 7}),
    ],
)
def test_place_of_time_spent(spent: dict[int, float], place: dict[str, object]) -> None:
    assert place_of(spent) == place
    assert outstanding_rank(spent) == place.get("rank")


def test_pauses_of_all_hosts_name_no_rank() -> None:
    pauses = [{"rank": rank, "kind": "host_pause", "delay_ns": 60_000_000 + rank} for rank in range(4)]
    run = run_of(json.dumps({"mesh": {"dp": 4}, "work": {"micro_batches": 2}, "faults": pauses}))
    paused = next(finding for finding in search(run.tables).findings if finding.code == "host-pause")
    assert dict(paused.where) == {}
    assert paused.title.startswith("The hosts of 4 ranks pause")


def test_pauses_that_alone_cost_the_step_name_their_rank() -> None:
    """All hosts pause in the middle of the step, but only rank 2 for longer than its launches are ahead of the device.

    The finding was "The hosts of 4 ranks pause", although nothing is saved on three of them.
    """
    compute = {"forward_ns": 1_000_000, "input_gradient_ns": 1_000_000, "weight_gradient_ns": 1_000_000}
    pauses = [
        {"rank": rank, "kind": "host_pause", "delay_ns": 85_000_000 if rank == 2 else 60_000_000} for rank in range(4)
    ]
    settings = {"mesh": {"dp": 4}, "work": {"micro_batches": 2}, "shape": {"layers": 24}}
    run = run_of(json.dumps({**settings, "speed": compute, "faults": pauses}))
    paused = next(finding for finding in search(run.tables).findings if finding.code == "host-pause")
    assert paused.where["rank"] == 2
    assert paused.title.startswith("The host of rank 2 pauses 5 times")
    assert paused.edit == "no_pauses,rank=2"
    assert paused.gain_fraction == pytest.approx(run.whatif("no_pauses").gain_fraction, abs=0.02)
    assert run.whatif("no_pauses,rank=0").gain_fraction == pytest.approx(0, abs=0.001)
