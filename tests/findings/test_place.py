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
