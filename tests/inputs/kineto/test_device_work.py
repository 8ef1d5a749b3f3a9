"""Launch data of device work: equal when read with the events or later from the arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Trace, raw_trace

from usp_prof.inputs.kineto import arguments
from usp_prof.inputs.kineto.arguments import LAUNCH_KEYS, GrowingLaunches
from usp_prof.inputs.trace_record import DEVICE_WORK
from usp_prof.tables.catalogue import build_rank

if TYPE_CHECKING:
    from usp_prof.inputs.trace_record import TraceRecord

_NUMBER = st.integers(-1, 2**40) | st.sampled_from([0, 12.5, "7", "x", None, True, [1], 1e30, -0.0])
_SIZES = st.lists(st.integers(1, 99), max_size=4) | st.sampled_from(
    [[1, "2", 3], "[1,1,1]", {"0": 1}, None, [1.5, 1, 1]]
)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(LAUNCH_KEYS[2:], _NUMBER),
        "grid": _SIZES,
        "block": _SIZES,
        "correlation": st.sampled_from([5, "5", 2**70]),
        "stream": st.sampled_from([7, "7"]),
        "name \\ 3": st.just("grid"),
    },
)


def raw_of(*arguments: dict[str, Any], category: str = "kernel") -> TraceRecord:
    trace = Trace().op("aten::mm", at=0, dur=5, dims=[[2, 2]])
    for place, event_arguments in enumerate(arguments):
        trace.event("k", category, at=100 * place, dur=50, args=event_arguments)
    return raw_trace(trace)


def kernels_of(raw: TraceRecord) -> pa.Table:
    made = build_rank(raw, 0, None)["kernels"]
    assert isinstance(made, pa.Table)
    return made


@pytest.mark.slow
@given(st.lists(_ARGUMENTS, max_size=5), st.sampled_from(DEVICE_WORK))
def test_kernels_are_read_alike_on_both_paths(arguments: list[dict[str, Any]], category: str) -> None:
    raw = raw_of(*arguments, category=category)
    assert raw.work is not None
    with_events = kernels_of(raw).to_pylist()
    afterwards = kernels_of(replace(raw, work=None)).to_pylist()
    assert json.dumps(with_events) == json.dumps(afterwards)  # an occupancy that is not known is no number


def test_each_combination_of_texts_is_stored_once() -> None:
    arguments = {"grid": [2, 1, 1], "block": [64, 1, 1]}
    raw = raw_of(arguments, {**arguments, "correlation": 9}, {"bytes": 64})
    assert raw.work is not None
    assert raw.work.texts.to_pylist() == ["{}", '{"grid":[2, 1, 1],"block":[64, 1, 1]}', '{"bytes":64}']
    assert raw.work.code.tolist() == [0, 1, 1, 2]
    assert raw.work.select(np.array([False, True, False, True])).code.tolist() == [1, 2]
    assert kernels_of(raw)["blocks"].to_pylist() == [2, 2, -1]


def test_duplicate_events_are_removed_from_device_work() -> None:
    again = Trace().event("k", "kernel", at=0, dur=50, args={"bytes": 1})
    for size in (1, 2):
        again.event("k", "kernel", at=0, dur=50, args={"bytes": size})
    raw = raw_trace(again)
    assert raw.work is not None
    assert [raw.work.texts[code].as_py() for code in raw.work.code.tolist()] == ['{"bytes":1}', '{"bytes":2}']


def test_too_many_combinations_are_not_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_MANY", 3)
    growing = GrowingLaunches()
    for number in range(5):
        growing.add(np.array([True, False]), [(b"", b"", b"", b"", b"%d" % number, b"")])
    assert growing.columns() is None
    raw = raw_of(*({"bytes": number} for number in range(5)))
    assert raw.work is None
    assert kernels_of(raw)["bytes"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_trace_without_device_work_has_empty_rows() -> None:
    growing = GrowingLaunches()
    growing.add(np.array([False, False]), ())
    growing.add(np.array([False, True]), [(b"1", b"", b"", b"", b"", b"")])
    growing.add(np.array([False]), ())
    made = growing.columns()
    assert made is not None
    assert made.code.tolist() == [0, 0, 0, 1, 0]
