"""Kineto reader on valid and damaged traces, written as JSON by hand with known answers."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs.kineto import reader, split
from usp_prof.inputs.kineto.arguments import Links
from usp_prof.inputs.trace_record import EVENTS, THREADS
from usp_prof.limits import MAX_WINDOW_NS
from usp_prof.model.errors import InputError, UspProfError

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.inputs.trace_record import TraceRecord


def event(name: str = "op", ts: float = 1, dur: float = 2, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 8, "ts": ts, "dur": dur} | fields


def read(tmp_path: Path, text: str | bytes, name: str = "rank0.json") -> TraceRecord:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return reader.read(path)


def document(*events: dict[str, Any], **top: Any) -> str:
    return json.dumps({**top, "traceEvents": list(events)})


def column(trace: TraceRecord, name: str) -> list[Any]:
    return list(trace.events[name].to_pylist())


def codes(trace: TraceRecord) -> set[str]:
    return {row.code for row in trace.health}


def counts(trace: TraceRecord) -> dict[str, int]:
    return {row.code: row.count for row in trace.health}


KINETO_LAYOUT = """\
{
  "schemaVersion": 1,
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "traceEvents": [
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 11, "tid": 12,
    "ts": 4399933707585.636, "dur": 0.007
    ,
    "args": {
      "External id": 5,"Record function id": 0, "Ev Idx": 0
    }
  },
  {
    "ph": "f", "id": 6, "pid": 0, "tid": 7, "ts": 4399933707590.001,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },
  {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
    "ts": 4399933707590.001, "dur": 12.345,
    "args": {
      "External id": 5, "device": 0, "stream": 7, "correlation": 91
    }
  },
  {
    "name": "process_name", "ph": "M", "ts": 0, "pid": 11, "tid": 0,
    "args": {
      "name": "python3"
    }
  },
  {
    "name": "process_labels", "ph": "M", "ts": 0, "pid": 11, "tid": 0, "args": {"labels": "CPU"}
  },
  {
    "name": "thread_name", "ph": "M", "ts": 0, "pid": 11, "tid": 12, "args": {"name": "thread 12 (python3)"}
  },
  {
    "name": "thread_sort_index", "ph": "M", "ts": 0, "pid": 11, "tid": 12, "args": {"sort_index": 12}
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 4399933707999.999
  }
  ],
  "traceName": "rank3.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000
}"""


def test_kinetos_own_layout_is_read_to_the_nanosecond(tmp_path: Path) -> None:
    trace = read(tmp_path, KINETO_LAYOUT)
    base = 1790857026000000000
    assert trace.health == ()
    assert column(trace, "start_ns") == [
        base + 4399933707585636,
        base + 4399933707590001,
        base + 4399933707999999,
    ]
    assert column(trace, "dur_ns") == [7, 12345, -1]
    assert column(trace, "name") == ["aten::mm", "gemm", "Record Window End"]
    assert column(trace, "phase") == ["X", "X", "i"]
    assert column(trace, "event") == [0, 1, 2]
    assert column(trace, "process") == ["11", "0", ""]
    assert column(trace, "external_id") == [5, 5, -1]
    assert column(trace, "correlation") == [-1, 91, -1]
    assert column(trace, "stream") == [-1, 7, -1]
    assert column(trace, "device") == [-1, 0, -1]
    assert json.loads(column(trace, "args")[1])["correlation"] == 91
    assert trace.metadata["distributedInfo"]["rank"] == 3
    assert trace.metadata["traceName"] == "rank3.json"
    assert trace.json_bytes == len(KINETO_LAYOUT)
    (row,) = trace.threads.to_pylist()
    assert (row["process_name"], row["process_labels"]) == ("python3", "CPU")
    assert (row["thread_name"], row["sort_index"]) == ("thread 12 (python3)", 12)


def test_tables_have_the_columns_of_their_schemas(tmp_path: Path) -> None:
    trace = read(tmp_path, KINETO_LAYOUT)
    assert tuple(trace.events.column_names) == EVENTS.names
    assert tuple(trace.threads.column_names) == THREADS.names


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}])
@pytest.mark.parametrize("bare", [False, True])
def test_every_json_layout_gives_the_same_events(tmp_path: Path, options: dict[str, Any], bare: bool) -> None:
    events = [event(f"op{i}", ts=i, args={"External id": i, "nested": [{"name": "}, {"}]}) for i in range(50)]
    text = json.dumps(events if bare else {"traceEvents": events, "deviceProperties": [{"id": 0}]}, **options)
    trace = read(tmp_path, text)
    assert column(trace, "name") == [f"op{i}" for i in range(50)]
    assert column(trace, "external_id") == list(range(50))
    assert codes(trace) == {"no_base_time"}
    assert ("deviceProperties" in trace.metadata) is not bare


@pytest.mark.parametrize("piece", [64, 257, 1000])
def test_the_text_may_be_split_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    events = [event(f"op{i}", ts=i, args={"x": [{"name": "a"}, {"name": '"}, {"ph'}], "e": "ü"}) for i in range(200)]
    monkeypatch.setattr(split, "PIECE", piece)
    trace = read(tmp_path, document(*events, head=[{"a": 1}]))
    assert column(trace, "name") == [f"op{i}" for i in range(200)]
    assert codes(trace) == {"no_base_time"}


@pytest.mark.parametrize("length", [1_500, 2_500, 9_000])
@pytest.mark.parametrize("between", [", ", '}, {"name": '])
def test_an_event_may_be_longer_than_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, between: str
) -> None:
    monkeypatch.setattr(split, "PIECE", 1_000)
    events = [event(f"op{i}", ts=i, args={"x": between * (length if i == 5 else 1)}) for i in range(50)]
    trace = read(tmp_path, document(*events))
    assert column(trace, "name") == [f"op{i}" for i in range(50)]
    assert codes(trace) == {"no_base_time"}


@pytest.mark.parametrize("odd", [{}, {"Sequence number": "31"}, {"External id": 1e400}, {"stream": "seven"}])
def test_op_inputs_are_read_in_the_same_pass(tmp_path: Path, odd: dict[str, Any]) -> None:
    shapes = {"Input Dims": [[2, 3], []], "Input type": ["float", ""], "Concrete Inputs": ["", "1"]}
    events = [
        event("a", args={"External id": 1, "Sequence number": 5, **shapes}),
        event("b", cat="python_function", args={"Python id": 1}),
        event("a", ts=3, args={"External id": 2, **shapes}),
        event("c", ts=4),
        event("twice", ts=5, args={"Input Dims": [[7]]}),
        event("twice", ts=5, args={"Input Dims": [[7]]}),
        event("d", ts=6, args={"Input Dims": [[7]], **odd}),
        event("e", ts=7, args=[]),
    ]
    record = read(tmp_path, document(*events))
    inputs = record.inputs
    parsed = [json.loads(inputs.texts[code].as_py()) for code in inputs.code.tolist()]
    assert parsed == [shapes, {}, shapes, {}, {"Input Dims": [[7]]}, {"Input Dims": [[7]]}, {}]
    assert len(inputs.texts) == 3
    assert record.sequence.tolist() == [5, -1, -1, -1, -1, 31 if "Sequence number" in odd else -1, -1]


def test_the_line_decoder_accepts_adjacent_values() -> None:
    """The line decoder accepts values without separators. The fast path of the reader relies on it."""
    read = msgspec.json.Decoder(Links).decode_lines(b'{"External id": 1}{\n"stream": 2}{} {"a": {"stream": 3}}')
    assert [(arguments.external, arguments.stream) for arguments in read] == [(1, -1), (-1, 2), (-1, -1), (-1, -1)]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_the_first_bytes_determine_the_compression(tmp_path: Path, pack: Any) -> None:
    assert column(read(tmp_path, pack(document(event()).encode()), "trace.json"), "name") == ["op"]


def test_gzip_may_have_several_members(tmp_path: Path) -> None:
    text = document(*[event(f"op{i}") for i in range(10)]).encode()
    trace = read(tmp_path, gzip.compress(text[:200]) + gzip.compress(text[200:]))
    assert len(column(trace, "name")) == 10
    assert codes(trace) == {"no_base_time"}


@given(
    first=st.integers(0, 9_000_000_000_000_000_000 - MAX_WINDOW_NS),
    after=st.lists(st.integers(0, MAX_WINDOW_NS), min_size=1, max_size=20),
    base=st.booleans(),
)
def test_times_are_exact_beyond_float_precision(
    tmp_path_factory: pytest.TempPathFactory, first: int, after: list[int], base: bool
) -> None:
    zero = 123_456_789 if base and first < 2**61 else 0
    ns = [first + offset_ns for offset_ns in after]
    texts = [
        f'{{"ph":"X","name":"a{i}","ts":{n // 1000}.{n % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}}}'
        for i, (n, dur) in enumerate(zip(ns, after, strict=True))
    ]
    text = f'{{"baseTimeNanoseconds":{zero},"traceEvents":[{",".join(texts)}]}}'
    trace = read(tmp_path_factory.mktemp("exact"), text)
    assert column(trace, "start_ns") == [n + zero for n in ns]
    assert column(trace, "dur_ns") == after


def test_old_integer_microseconds_are_exact(tmp_path: Path) -> None:
    trace = read(tmp_path, document(event(ts=1706850122846038, dur=603240), event("b", ts=1706850122846039, dur=0)))
    assert column(trace, "start_ns") == [1706850122846038000, 1706850122846039000]


def test_times_finer_than_a_nanosecond_are_rounded_and_reported(tmp_path: Path) -> None:
    trace = read(tmp_path, '{"traceEvents":[{"ph":"X","name":"a","ts":1.2345678,"dur":1e0}]}')
    assert column(trace, "start_ns") == [1235]
    assert counts(trace)["finer_than_ns"] == 1
    large = '{"traceEvents":[{"ph":"X","name":"a","ts":1706850122846038.12345,"dur":1e0}]}'
    assert column(read(tmp_path, large), "start_ns") == [1706850122846038123]
    assert counts(read(tmp_path, large))["finer_than_ns"] == 1


def test_the_categories_of_2021_are_translated(tmp_path: Path) -> None:
    old = ["Operator", "Kernel", "Memcpy", "Memset", "Runtime", "user_annotation", "Own"]
    events = [event(str(i), cat=cat, args={"external id": i}) for i, cat in enumerate(old)]
    trace = read(tmp_path, document(*events))
    today = ["cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation", "Own"]
    assert column(trace, "category") == today
    assert column(trace, "external_id") == list(range(7))


def test_a_profiler_step_among_ops_of_2021_is_a_step_mark(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", cat="Operator"), event("aten::mm", cat="Operator"),
        event("mine", cat="User Annotation"), event("ProfilerStep#3", cat="kernel"), event("ProfilerStep#4"),
    ]  # fmt: skip
    trace = read(tmp_path, document(*events))
    assert column(trace, "category") == ["user_annotation", "cpu_op", "user_annotation", "kernel", "user_annotation"]


def test_ids_may_be_numbers_or_texts(tmp_path: Path) -> None:
    events = [
        event("a", pid="Spans", tid=1.0, args={"stream": "7", "device": 1.0}),
        event("b", pid=1, tid="1", args={"stream": "0x7f", "correlation": 2**64}),
        event("c", pid="1", tid=None),
    ]
    trace = read(tmp_path, document(*events))
    assert column(trace, "process") == ["Spans", "1", "1"]
    assert column(trace, "thread") == ["1", "1", ""]
    assert column(trace, "stream") == [7, -1, -1]
    assert column(trace, "device") == [1, -1, -1]
    assert column(trace, "correlation") == [-1, -1, -1]


def test_begin_and_end_become_one_event(tmp_path: Path) -> None:
    def mark(phase: str, name: str, ts: int, tid: int = 8) -> dict[str, Any]:
        return {"ph": phase, "name": name, "pid": 7, "tid": tid, "ts": ts}

    events = [
        mark("B", "outer", 10), mark("B", "inner", 20), mark("B", "other thread", 25, tid=9), mark("E", "inner", 30),
        event("x", ts=31), mark("E", "outer", 50), mark("E", "stray", 60), mark("E", "other thread", 70, tid=9),
        mark("B", "never ends", 80),
    ]  # fmt: skip
    trace = read(tmp_path, document(*events))
    got = dict(
        zip(column(trace, "name"), zip(column(trace, "phase"), column(trace, "dur_ns"), strict=True), strict=True)
    )
    assert got == {
        "outer": ("X", 40_000), "inner": ("X", 10_000), "other thread": ("X", 45_000), "x": ("X", 2_000),
        "never ends": ("B", -1),
    }  # fmt: skip
    assert column(trace, "event") == list(range(5))
    assert counts(trace)["unpaired_phases"] == 2


class TestDamage:
    """Everything complete is kept, and losses are named."""

    LISTED = tuple(event(f"op{i}", ts=i, args={"External id": i}) for i in range(100))

    def test_truncated_text(self, tmp_path: Path) -> None:
        text = document(*self.LISTED)
        cut = text.index('"op73"') + 10
        trace = read(tmp_path, text[:cut])
        assert len(column(trace, "name")) == 73
        (row,) = [row for row in trace.health if row.code == "truncated"]
        assert row.severity == "data_loss"
        assert row.count == len(text[text.index('{"ph": "X", "cat": "cpu_op", "name": "op73"') : cut])

    @pytest.mark.parametrize("missing", range(1, 40))
    def test_truncated_at_any_byte_of_the_end(self, tmp_path: Path, missing: int) -> None:
        text = document(*self.LISTED)
        trace = read(tmp_path, text[:-missing])
        assert len(column(trace, "name")) in {99, 100}
        assert missing < 3 or "truncated" in codes(trace)

    @pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
    def test_truncated_packing(self, tmp_path: Path, pack: Any) -> None:
        events = [event(f"op{hash((i, 7))}", ts=i) for i in range(20_000)]
        packed = pack(document(*events).encode())
        trace = read(tmp_path, packed[: len(packed) * 3 // 4])
        assert 5_000 < len(column(trace, "name")) < 20_000
        assert "truncated" in codes(trace)

    def test_corrupt_packing(self, tmp_path: Path) -> None:
        packed = bytearray(gzip.compress(document(*[event(f"op{i * i}", ts=i) for i in range(50_000)]).encode()))
        packed[len(packed) // 2 : len(packed) // 2 + 400] = b"\xff" * 400
        trace = read(tmp_path, bytes(packed))
        assert trace.events.num_rows > 1_000
        assert codes(trace) & {"corrupt_packing", "broken_events", "truncated"}

    def test_one_bad_event_costs_itself(self, tmp_path: Path) -> None:
        text = document(*self.LISTED).replace('"ts": 50,', '"ts": 12.3.4,')
        trace = read(tmp_path, text)
        assert column(trace, "name") == [f"op{i}" for i in range(100) if i != 50]
        assert counts(trace)["broken_events"] == 1

    def test_nan_and_infinity(self, tmp_path: Path) -> None:
        text = document(*self.LISTED).replace(
            '"dur": 2, "args": {"External id": 3}', '"dur": NaN, "args": {"x": Infinity}'
        )
        trace = read(tmp_path, text)
        assert trace.events.num_rows == 100
        assert column(trace, "dur_ns")[3] == 0
        assert json.loads(column(trace, "args")[3]) == {"x": None}
        assert counts(trace)["missing_duration"] == 1
        assert counts(trace)["repaired_events"] == 1

    def test_an_event_without_a_time_cannot_be_placed(self, tmp_path: Path) -> None:
        trace = read(tmp_path, document(event(), event("b", ts="soon"), {"ph": "X", "name": "c"}))
        assert column(trace, "name") == ["op"]
        assert counts(trace)["unplaced_events"] == 2

    def test_control_characters(self, tmp_path: Path) -> None:
        trace = read(tmp_path, document(*self.LISTED).replace('"op9"', '"op\x01\n9"'))
        assert column(trace, "name")[9] == "op\x01\n9"
        assert trace.events.num_rows == 100

    def test_invalid_utf8(self, tmp_path: Path) -> None:
        trace = read(tmp_path, document(*self.LISTED).encode().replace(b'"op9"', b'"op\xff\xfe9"'))
        assert column(trace, "name")[9] == "op\ufffd\ufffd9"
        assert counts(trace)["invalid_utf8"] == 2

    def test_lone_surrogates(self, tmp_path: Path) -> None:
        trace = read(tmp_path, document(*self.LISTED).replace('"op9"', '"op\\ud8009"'))
        assert column(trace, "name")[9] == "op?9"

    def test_duplicates_are_kept_once(self, tmp_path: Path) -> None:
        twins = [event("a", args={"External id": 1}), event("a", args={"External id": 2})]
        trace = read(tmp_path, document(*twins, event("b"), *twins))
        assert column(trace, "name") == ["a", "a", "b"]
        assert column(trace, "event") == [0, 1, 2]
        assert counts(trace)["duplicate_events"] == 2

    def test_durations(self, tmp_path: Path) -> None:
        missing = event("a")
        del missing["dur"]
        trace = read(tmp_path, document(missing, event("b", dur=-3), {"ph": "i", "name": "c", "ts": 1}))
        assert column(trace, "dur_ns") == [0, 0, -1]
        assert counts(trace)["missing_duration"] == 1
        assert counts(trace)["negative_duration"] == 1

    def test_damaged_fields_before_the_events(self, tmp_path: Path) -> None:
        text = '{"good": {"a": 1}, "bad": "a" b", "rank": 3, "traceEvents": [' + json.dumps(event()) + '], "base": 1}'
        trace = read(tmp_path, text)
        assert column(trace, "name") == ["op"]
        assert trace.metadata["good"] == {"a": 1}
        assert trace.metadata["rank"] == 3
        assert trace.metadata["base"] == 1
        assert "broken_fields" in codes(trace)

    def test_damage_in_the_middle_keeps_the_fields_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(split, "PIECE", 2_000)
        text = document(*self.LISTED).replace('"name": "op40"', '"name: "op40"')
        trace = read(tmp_path, text[:-1] + ', "baseTimeNanoseconds": 5000}')
        assert trace.events.num_rows == 99
        assert column(trace, "start_ns")[0] == 5000

    def test_deep_nesting_is_no_end(self, tmp_path: Path) -> None:
        deep = "[" * 100_000 + "]" * 100_000
        text = document(*self.LISTED).replace('{"External id": 5}', '{"x": ' + deep + "}")
        assert read(tmp_path, text).events.num_rows == 99

    def test_no_events(self, tmp_path: Path) -> None:
        assert codes(read(tmp_path, '{"traceEvents": []}')) == {"no_events"}
        assert codes(read(tmp_path, "[]")) == {"no_events"}

    @pytest.mark.parametrize("text", [b"", b"   ", b"{}", b'{"nodes": []}', b"hello", b"\x1f\x8b\x08", b"\x00" * 100])
    def test_input_that_is_no_trace_raises_with_a_hint(self, tmp_path: Path, text: bytes) -> None:
        with pytest.raises(InputError) as caught:
            read(tmp_path, text)
        assert caught.value.hint
        assert isinstance(caught.value, UspProfError)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot read"):
            reader.read(tmp_path / "nothing.json")


@pytest.mark.parametrize("index", [True, "3", 1e300, 1 << 70, None])
def test_a_sort_index_that_is_not_a_number_is_absent(tmp_path: Path, index: Any) -> None:
    metadata = {"ph": "M", "name": "thread_sort_index", "pid": 7, "tid": 8, "ts": 0, "args": {"sort_index": index}}
    assert read(tmp_path, document(event(), metadata)).threads["sort_index"].to_pylist() == [-1]
