"""Real GPU runs without everything that names their groups: calls get the groups of the full traces, or none."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from corpus_sets import TRACES

from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
STAYS = {"External id", "correlation", "device", "stream", "context"}


def without_names(source: Path, folder: Path) -> TableSet:
    """Copy a run; its communication keeps only what links and places it."""
    folder.mkdir()
    for path in source.rglob("*.json*"):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            trace: dict[str, Any] = json.load(file)
        if "traceEvents" not in trace:
            continue
        trace.get("distributedInfo", {}).pop("pg_config", None)
        for event in trace["traceEvents"]:
            name = str(event.get("name", ""))
            if name == "record_param_comms" or name.startswith("c10d::") or "nccl" in name.lower():
                event["args"] = {key: value for key, value in event.get("args", {}).items() if key in STAYS}
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(trace), encoding="utf-8")
    return open_run(folder, cache_dir=folder / "cache").tables


def ranks_of_calls(tables: TableSet, rank: int) -> dict[int, str]:
    """Return by start the ranks of each call's group; an empty text if the group is unknown."""
    own = tables.columns("collectives", rank)
    return {
        start: key.rpartition("@")[2]
        for start, key in zip(own["start_ns"].tolist(), own["group"].tolist(), strict=True)
    }


@pytest.mark.parametrize(
    "name", ["megatron-tp8-a100", "param-dlrm-8r", "torchrec-4r-sleeping-rank", "torchrec-4r-v100"]
)
def test_calls_without_names_get_their_true_groups(name: str, tmp_path: Path, cache: Path) -> None:
    full, stripped = open_run(TRACES / name, cache_dir=cache).tables, without_names(TRACES / name, tmp_path / "run")
    for rank in full.ranks:
        assert ranks_of_calls(full, rank)
        assert ranks_of_calls(stripped, rank) == ranks_of_calls(full, rank)
