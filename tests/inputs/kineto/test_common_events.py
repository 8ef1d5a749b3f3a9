"""Fast path through a piece of text: equal to the slow path for any events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from usp_prof.inputs.kineto import columns, reader
from usp_prof.inputs.kineto.nanoseconds import ABSENT, from_whole

if TYPE_CHECKING:
    from pathlib import Path

PHASES = st.sampled_from(["X", "X", "X", "s", "f", "t", "M", "i"])
TIMES = st.one_of(st.integers(0, 1 << 52), st.integers(0, 1 << 62), st.floats(0, 1e9, allow_nan=False))
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "External id": st.integers(-1, 9) | st.text(max_size=2),
        "external id": st.integers(1, 9),
        "stream": st.integers(0, 9),
        "correlation": st.integers(0, 1 << 40),
        "Sequence number": st.integers(0, 9),
        "Input Dims": st.lists(st.lists(st.integers(0, 4), max_size=2), max_size=2),
        "name": st.text(max_size=3),
    },
)
EVENTS = st.fixed_dictionaries(
    {"ph": PHASES, "name": st.sampled_from(["a", "thread_name", "b"]), "pid": st.integers(0, 3) | st.just("Spans")},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "python_function", "cuda_runtime", "ac2g", "", "other"]),
        "tid": st.integers(0, 3) | st.text(max_size=2),
        "ts": TIMES,
        "dur": TIMES,
        "args": ARGUMENTS,
        "id": st.integers(0, 9),
    },
)


@settings(max_examples=60)
@given(st.lists(EVENTS, min_size=1, max_size=6))
def test_fast_and_slow_path_read_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("common") / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "X", "name": "last", "ts": 1, "dur": 1}]}))
    quick = reader.read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_UNCOMMON", 0)
        slow = reader.read(path)
    for name in slow.events.column_names:
        assert quick.events[name].to_pylist() == slow.events[name].to_pylist(), name
    assert quick.threads.equals(slow.threads)
    ops = [row for row, category in enumerate(slow.events["category"].to_pylist()) if category == "cpu_op"]
    assert quick.sequence[ops].tolist() == slow.sequence[ops].tolist()
    assert quick.inputs.texts.take(quick.inputs.code[ops]) == slow.inputs.texts.take(slow.inputs.code[ops])


def test_a_valid_trace_is_read_on_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fallbacks: list[int] = []
    monkeypatch.setattr(columns.EventColumns, "take", lambda *_: fallbacks.append(1))
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 7, "tid": 8, "ts": 1.5, "dur": 2, "args": {"stream": 7}}
    path = tmp_path / "rank0.json"
    mark = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 8, "ts": 2.5}
    path.write_text(json.dumps({"traceEvents": [mark, event, {"ph": "s", "id": 1, "pid": 7, "ts": 1.5}]}))
    events = reader.read(path).events
    assert events["start_ns"].to_pylist() == [2500, 1500]
    assert events["dur_ns"].to_pylist() == [-1, 2000]
    assert events["phase"].to_pylist() == ["i", "X"]
    assert fallbacks == []


def test_integer_times_too_large_for_nanoseconds_are_absent() -> None:
    most = (2**63 - 1) // 1000
    assert from_whole([5, -5, most, most + 1, -(2**63)]).tolist() == [5000, -5000, most * 1000, ABSENT, ABSENT]
    with pytest.raises(OverflowError):
        from_whole([1 << 63])
