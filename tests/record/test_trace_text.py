from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.record.trace_text import ENCODING, edited, find_events, with_metadata

NAMES = st.one_of(st.just("gloo:all_reduce"), st.text(max_size=12), st.just('{"name": "gloo:x"}'))
ARGUMENTS = st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
EVENTS = st.lists(st.tuples(NAMES, ARGUMENTS, st.integers(0, 10**15)), max_size=8)


def trace(events: list[tuple[str, dict[str, Any] | None, int]], indent: int | None) -> tuple[dict[str, Any], str]:
    data: dict[str, Any] = {"baseTimeNanoseconds": 1000, "usp_prof": {"a": ["]", 1]}, "traceEvents": []}
    for name, args, nanoseconds in events:
        event: dict[str, Any] = {"ph": "X", "cat": "c", "name": name, "pid": 1, "tid": 7, "ts": nanoseconds / 1000}
        data["traceEvents"].append(event | {"dur": 1.5} | ({"args": args} if args is not None else {}))
    return data, json.dumps(data, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass").decode(ENCODING)


@given(events=EVENTS, indent=st.sampled_from([None, 2]))
def test_only_the_arguments_of_matched_events_change(
    events: list[tuple[str, dict[str, Any] | None, int]], indent: int | None
) -> None:
    data, text = trace(events, indent)
    events_read = find_events(text, ("gloo:",))
    assert len(events_read) == sum(name.startswith("gloo:") for name, _, _ in events)
    added = {place: {"Process Group Name": f"g{place}", "Seq": place} for place in range(len(events_read))}
    after = "".join(edited(text, added, events_read))
    expected = copy.deepcopy(data)
    chosen = [event for event in expected["traceEvents"] if event["name"].startswith("gloo:")]
    for event, arguments in zip(chosen, added.values(), strict=True):
        event["args"] = {**arguments, **event.get("args", {})}
    assert json.loads(after.encode(ENCODING).decode("utf-8", "surrogatepass")) == expected


def test_times_are_since_the_epoch() -> None:
    _, text = trace([("gloo:barrier", {}, 5_000_250)], None)
    (event,) = find_events(text, ("gloo:",))
    assert (event.start_ns, event.end_ns, event.thread) == (5_001_250, 5_002_750, 7)


@pytest.mark.parametrize(
    "odd",
    [
        '{"traceEvents": [{"name": "gloo:x", "ph": "X"',
        '{"name": "gloo:x", "ph": "i", "ts": 1}',
        '{"name": "gloo:x", "ph": "X"}',
    ],
)
def test_incomplete_events_are_ignored(odd: str) -> None:
    assert find_events(odd, ("gloo:",)) == []


def test_a_thread_without_a_number_and_odd_arguments_are_read() -> None:
    (event,) = find_events('{"name": "gloo:x", "ph": "X", "ts": "1.5", "tid": "main", "args": []}', ("gloo:",))
    assert (event.thread, event.start_ns, event.duration_ns, event.args) == (-1, 1500, 0, {})


def test_metadata_is_replaced_only_before_the_events() -> None:
    data, text = trace([("gloo:x", {"usp_prof": 1}, 0)], 1)
    after = json.loads(with_metadata(text, "usp_prof", '{"b": 2}'))
    assert after == {**data, "usp_prof": {"b": 2}}
    assert with_metadata('{"traceEvents": [{"usp_prof": 1}]}', "usp_prof", "2") == '{"traceEvents": [{"usp_prof": 1}]}'
    assert with_metadata("{}", "usp_prof", "2") == "{}"
