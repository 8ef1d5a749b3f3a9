"""Omitted rows and duplicates: found across chunks and batches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs import growing
from usp_prof.inputs.growing import filter_texts, take_texts
from usp_prof.inputs.kineto.reader import read

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = st.lists(st.lists(st.text(max_size=4).map(lambda text: text.encode("utf-8", "replace").decode()), max_size=8))


def chunked(parts: list[list[str]]) -> pa.ChunkedArray:
    # Chunks that start inside a buffer, like slices.
    chunks = [pa.array(["before", *part, "behind"], pa.string()).slice(1, len(part)) for part in parts]
    return pa.chunked_array(chunks, pa.string())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_ROWS", 3)
    monkeypatch.setattr(growing, "CHUNK", 10)


@given(TEXTS)
def test_remaining_texts_are_unchanged_and_in_order(parts: list[list[str]]) -> None:
    texts = chunked(parts)
    keep = np.random.default_rng(len(texts)).random(len(texts)) < 0.6
    assert filter_texts(texts, keep).to_pylist() == [
        text for text, stays in zip(texts.to_pylist(), keep, strict=True) if stays
    ]


@given(TEXTS)
def test_texts_are_taken_row_by_row(parts: list[list[str]]) -> None:
    texts = chunked(parts)
    if not len(texts):
        return
    noise = np.random.default_rng(len(texts))
    rows = noise.integers(0, len(texts), 20)
    plain = texts.to_pylist()
    assert take_texts(texts, rows).to_pylist() == [plain[row] for row in rows]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["", "x", "y"])), max_size=30))
def test_only_events_equal_in_every_field_are_duplicates(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, str]]
) -> None:
    trace = tiny.Trace(device="cpu").op("aten::first", 10, 1)
    for name, at, argument in made:
        trace.op(name, at, 1, args={"said": argument})
    raw = read(trace.write(tmp_path_factory.mktemp("trace") / "rank0.json"))
    assert raw.events.num_rows == 1 + len(set(made))
    count_by_code = {row.code: row.count for row in raw.health}
    repeats = sum(count - 1 for count in Counter(made).values())
    assert count_by_code.get("duplicate_events", 0) == repeats
    assert raw.events["event"].to_pylist() == list(range(raw.events.num_rows))


def test_a_duplicated_event_list_is_read_once(tmp_path: Path) -> None:
    trace = tiny.Trace().step(1, 0, 900)
    for number in range(200):
        trace.kernel("k", number * 10, 5, launch_at=number)
    trace.events = trace.events * 2
    raw = read(trace.write(tmp_path / "rank0.json"))
    assert raw.events.num_rows == 401
    assert {row.code: row.count for row in raw.health}["duplicate_events"] == 401
