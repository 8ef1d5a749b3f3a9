"""Launch data of device work: equal to those in the arguments of each event."""

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

from usp_prof.inputs.trace_record import DEVICE_WORK, RepeatedArguments
from usp_prof.tables.catalog import build_rank

if TYPE_CHECKING:
    from usp_prof.inputs.trace_record import TraceRecord

_NUMBER = st.integers(-1, 2**40) | st.sampled_from([0, 12.5, "7", "x", None, True, [1], 1e30, -0.0])
_SIZES = st.lists(st.integers(1, 99), max_size=4) | st.sampled_from(
    [[1, "2", 3], "[1,1,1]", {"0": 1}, None, [1.5, 1, 1]]
)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("est. achieved occupancy %", "graph id", "bytes", "size"), _NUMBER),
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
def test_kernels_have_the_launches_of_their_own_arguments(arguments: list[dict[str, Any]], category: str) -> None:
    raw = raw_of(*arguments, category=category)
    with_events = kernels_of(raw).to_pylist()
    each_alone = RepeatedArguments(np.arange(raw.events.num_rows), raw.events["args"].combine_chunks())
    afterwards = kernels_of(replace(raw, launches=each_alone)).to_pylist()
    assert json.dumps(with_events) == json.dumps(afterwards)  # an occupancy that is not known is no number


def test_each_combination_of_texts_is_stored_once() -> None:
    arguments = {"grid": [2, 1, 1], "block": [64, 1, 1]}
    raw = raw_of(arguments, {**arguments, "correlation": 9}, {"bytes": 64})
    assert raw.launches.texts.to_pylist() == ["{}", '{"grid":[2, 1, 1],"block":[64, 1, 1]}', '{"bytes":64}']
    assert raw.launches.code.tolist() == [0, 1, 1, 2]
    assert raw.launches.select(np.array([False, True, False, True])).code.tolist() == [1, 2]
    assert kernels_of(raw)["blocks"].to_pylist() == [2, 2, -1]


def test_duplicate_events_are_removed_from_device_work() -> None:
    again = Trace().event("k", "kernel", at=0, dur=50, args={"bytes": 1})
    for size in (1, 2):
        again.event("k", "kernel", at=0, dur=50, args={"bytes": size})
    raw = raw_trace(again)
    assert [raw.launches.texts[code].as_py() for code in raw.launches.code.tolist()] == ['{"bytes":1}', '{"bytes":2}']


def test_a_trace_without_device_work_has_empty_rows() -> None:
    raw = raw_trace(Trace().op("aten::mm", at=0, dur=5))
    assert (raw.launches.code.tolist(), raw.launches.texts.to_pylist()) == ([0], ["{}"])
    assert kernels_of(raw).num_rows == 0
