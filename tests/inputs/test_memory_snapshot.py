from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof.inputs.memory_snapshot import read_memory_snapshot
from usp_prof.model.errors import InputError

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


def test_a_snapshot_has_a_peak_and_fragmentation(tmp_path: Path) -> None:
    history = [
        event("segment_alloc", 1_000, 0), event("alloc", 500, 1), event("alloc", 300, 2),
        event("free_requested", 300, 3), event("free_completed", 300, 4), event("oom", 9_000, 5),
    ]  # fmt: skip
    (snapshot,) = read_memory_snapshot(
        saved(tmp_path / "s.pickle", {"segments": [SEGMENT], "device_traces": [history]})
    )
    assert (snapshot.reserved, snapshot.allocated, snapshot.largest_free, snapshot.segments) == (1_000, 600, 400, 1)
    # 600 are in use now, 500 more than before the history; the peak was 300 higher.
    assert snapshot.peak == 900
    assert snapshot.fragmentation == 0.4
    assert snapshot.out_of_memory == 1
    assert snapshot.time_us.tolist() == [0, 1, 2, 4]
    # 1,000 are in use now, and nothing was in use when the history started.
    assert (snapshot.held_peak, snapshot.held_at_peak, snapshot.held.tolist()) == (1_000, 1_000, [1_000] * 4)
    assert snapshot.in_use.tolist() == [100, 600, 900, 600]


def test_a_peak_before_segments_were_released_has_its_reserved_bytes(tmp_path: Path) -> None:
    history = [event("alloc", 700, 0), event("free_completed", 700, 1), event("segment_free", 2_000, 2)]
    (snapshot,) = read_memory_snapshot(
        saved(tmp_path / "s.pickle", {"segments": [SEGMENT], "device_traces": [history]})
    )
    assert (snapshot.peak, snapshot.held_at_peak, snapshot.held_peak, snapshot.reserved) == (1_300, 3_000, 3_000, 1_000)


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def test_memory_in_use_is_attributed_to_the_innermost_line_of_user_code(tmp_path: Path) -> None:
    native = frame("??", 0, "c10::CUDACachingAllocator::malloc")
    inside = frame("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward")
    own, outer = frame("/home/me/model.py", 42, "forward"), frame("/home/me/train.py", 7, "main")
    blocks = [
        {"size": 100, "state": "active_allocated", "frames": [native, inside, own, outer]},
        {"size": 50, "state": "active_allocated", "frames": [own, outer]},
        {"size": 300, "state": "active_allocated", "frames": [native, inside]},
        {"size": 7, "state": "active_allocated", "frames": [native]},
        {"size": 9, "state": "active_allocated", "frames": []},
        {"size": 900, "state": "inactive", "frames": [own]},
    ]
    (snapshot,) = read_memory_snapshot(saved(tmp_path / "s.pickle", {"segments": [{**SEGMENT, "blocks": blocks}]}))
    assert [(site.where, site.bytes, site.blocks) for site in snapshot.sites] == [
        ("linear.py:134 forward", 300, 1),
        ("model.py:42 forward", 150, 2),
        ("c10::CUDACachingAllocator::malloc", 7, 1),
    ]


def test_without_a_history_the_peak_is_the_memory_in_use(tmp_path: Path) -> None:
    (snapshot,) = read_memory_snapshot(saved(tmp_path / "s.pickle", {"segments": [{**SEGMENT, "device": 3}]}))
    assert (snapshot.device, snapshot.peak) == (3, 600)


class Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("this must not run",))


@pytest.mark.parametrize("data", [Harm(), [], {"segments": [{"device": "x"}]}, {}, {"segments": 3}])
def test_an_invalid_snapshot_is_refused_without_running_code(
    tmp_path: Path, data: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="not a memory snapshot"):
        read_memory_snapshot(saved(tmp_path / "s.pickle", data))
    assert capsys.readouterr().out == ""


def test_a_missing_or_cut_file_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(pickle.dumps({"segments": [SEGMENT]})[:20])
    for path in (cut, tmp_path / "none.pickle"):
        with pytest.raises(InputError, match="memory snapshot"):
            read_memory_snapshot(path)
