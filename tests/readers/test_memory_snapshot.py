from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof.model.errors import InputError
from usp_prof.readers.memory_snapshot import read_memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = {
    "device": 0, "total_size": 1_000, "allocated_size": 600,
    "blocks": [{"size": 600, "state": "active_allocated"}, {"size": 400, "state": "inactive"}],
}  # fmt: skip


def event(action: str, size: int, time: int) -> dict[str, Any]:
    return {"action": action, "size": size, "time_us": time, "addr": 1}


def saved(path: Path, data: Any) -> Path:
    path.write_bytes(pickle.dumps(data))
    return path


def test_a_snapshot_gives_its_peak_and_its_fragmentation(tmp_path: Path) -> None:
    history = [
        event("segment_alloc", 1_000, 0), event("alloc", 500, 1), event("alloc", 300, 2),
        event("free_requested", 300, 3), event("free_completed", 300, 4), event("oom", 9_000, 5),
    ]  # fmt: skip
    (found,) = read_memory_snapshot(saved(tmp_path / "s.pickle", {"segments": [SEGMENT], "device_traces": [history]}))
    assert (found.reserved, found.allocated, found.largest_free, found.segments) == (1_000, 600, 400, 1)
    # 600 are in use now, 500 more than before the history; at most there were 300 more on top.
    assert found.peak == 900
    assert found.fragmentation == 0.4
    assert found.out_of_memory == 1
    assert found.time_us.tolist() == [1, 2, 4]


def test_without_a_history_the_peak_is_what_is_in_use(tmp_path: Path) -> None:
    (found,) = read_memory_snapshot(saved(tmp_path / "s.pickle", {"segments": [{**SEGMENT, "device": 3}]}))
    assert (found.device, found.peak) == (3, 600)


class Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("this must not run",))


@pytest.mark.parametrize("data", [Harm(), [], {"segments": [{"device": "x"}]}, {}, {"segments": 3}])
def test_what_is_no_snapshot_is_refused_and_nothing_runs(
    tmp_path: Path, data: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="no memory snapshot"):
        read_memory_snapshot(saved(tmp_path / "s.pickle", data))
    assert capsys.readouterr().out == ""


def test_a_missing_or_cut_file_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(pickle.dumps({"segments": [SEGMENT]})[:20])
    for path in (cut, tmp_path / "none.pickle"):
        with pytest.raises(InputError, match="no memory snapshot"):
            read_memory_snapshot(path)
