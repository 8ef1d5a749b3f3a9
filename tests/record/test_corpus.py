"""Recorded gloo runs with their flight recorder entries: every collective is matched, equally on all ranks."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from usp_prof.contract import GroupEntry
from usp_prof.record.export import enrich
from usp_prof.record.join import read_entries
from usp_prof.record.trace_text import ENCODING, TextEvent, find_events

pytestmark = pytest.mark.real

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "traces" / "gloo"
RUNS = ("dp4-ep4-moe-4r", "dp4-zero3-async-prefetch-4r", "pp2-cp2-tp2-8r")


def restored(folder: Path, rank: int) -> tuple[float, list[TextEvent]]:
    with gzip.open(folder / f"rank{rank}.json.gz") as file:
        text = file.read().decode(ENCODING)
    with gzip.open(folder / f"fr{rank}.json.gz") as file:
        entries = read_entries(json.load(file))
    place = text.index('"distributedInfo"')
    declared = json.JSONDecoder().raw_decode(text, text.index("{", place))[0]["pg_config"]
    groups = [GroupEntry(group["pg_name"], group["ranks"], [], group["pg_desc"]) for group in declared]
    enriched = enrich(text, entries, groups, rank)
    return enriched.rate, find_events("".join(enriched.pieces), ("gloo:",))


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of recorded gloo runs is not available next to the project")
@pytest.mark.parametrize("run", RUNS)
def test_participants_of_a_call_agree_and_end_after_the_last_start(run: str) -> None:
    members: dict[tuple[str, int], list[tuple[str, int, int, int]]] = defaultdict(list)
    for rank in range(len(list((CORPUS / run).glob("rank*.json.gz")))):
        rate, events = restored(CORPUS / run, rank)
        assert rate == 1.0
        for event in events:
            args = event.args
            if "Seq" in args:
                key = (args["Process Group Name"] + args["Process Group Ranks"], args["Seq"])
                size = max(args["In msg nelems"], args["Out msg nelems"])
                members[key].append((args["Collective name"], size, event.start_ns, event.end_ns))
    complete_calls = [parts for (group, _), parts in members.items() if len(parts) == group.count(",") + 1]
    assert len(complete_calls) > 40
    for parts in complete_calls:
        if parts[0][0] not in {"all_to_all", "all_to_allv"}:  # uneven by design
            assert len({(name, size) for name, size, _, _ in parts}) == 1
        if parts[0][0] in {"allreduce", "_allgather_base", "_reduce_scatter_base"}:
            assert min(end for *_, end in parts) >= max(start for _, _, start, _ in parts) - 50_000
