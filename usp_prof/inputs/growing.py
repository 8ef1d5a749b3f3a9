"""Columns that grow piece by piece: integers, coded texts, and long texts outside of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import array_of, coded, index_of
from usp_prof.columns.rows import text_codes
from usp_prof.inputs.memory import LongText, release_pages

# Growing columns: numbers are appended in place, so many small pieces do not fragment memory.


Number = TypeVar("Number", bound=np.integer)
_HALF = 1 << 31


class Numbers(Generic[Number]):
    """A column of integers of one type."""

    __slots__ = ("_bytes", "kind")

    def __init__(self, kind: type[Number]) -> None:
        self.kind = kind
        self._bytes = bytearray()

    def add(self, piece: NDArray[Any]) -> None:
        """Append a piece."""
        self._bytes += np.ascontiguousarray(piece, self.kind).data

    def array(self) -> NDArray[Number]:
        """Return the column; nothing can be added afterwards."""
        return np.frombuffer(self._bytes, self.kind)


class NarrowNumbers:
    """A column of integers stored with 32 bits until a value needs 64."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: Numbers[np.int32] | Numbers[np.int64] = Numbers(np.int32)

    def add(self, piece: Ints) -> None:
        """Append a piece."""
        if self._numbers.kind is np.int32 and len(piece) and not -_HALF <= int(piece.min()) <= int(piece.max()) < _HALF:
            wide = Numbers(np.int64)
            wide.add(self._numbers.array().astype(np.int64))
            self._numbers = wide
        self._numbers.add(piece)

    def add_absent(self, rows: int) -> None:
        """Append -1 for this number of rows."""
        self._numbers.add(np.full(rows, -1, self._numbers.kind))

    def array(self) -> NDArray[np.int32] | Ints:
        """Return the column; nothing can be added afterwards."""
        return self._numbers.array()


def spread(values: NDArray[Any], rows: Flags, absent: float = -1) -> NDArray[Any]:
    """Place values on the marked rows; the other rows are absent."""
    if len(values) == len(rows):
        return values
    column = np.full(len(rows), absent, values.dtype)
    column[rows] = values
    return column


class Codes(dict[Any, int]):
    """Mapping from keys to codes; a new key gets the next number."""

    def __missing__(self, key: object) -> int:
        code = self[key] = len(self)
        return code


class Texts:
    """A column of texts (or of ids stored as texts) that grows piece by piece."""

    __slots__ = ("_codes", "_numbers")

    def __init__(self) -> None:
        self._codes = Codes()
        self._numbers = Numbers(np.int32)

    def add(self, values: Sequence[object]) -> NDArray[np.int32]:
        """Append a piece and return its codes."""
        piece = np.fromiter(map(self._codes.__getitem__, values), np.int32, len(values))
        self._numbers.add(piece)
        return piece

    def array(self, spelling: Callable[[object], str]) -> pa.DictionaryArray:
        """Return the column, with each value converted by `spelling`; values with equal spelling are merged."""
        return _spelt(self._numbers.array(), self._codes, spelling)


_BETWEEN = b"\0"
"""Separates the JSON texts of a combination; no JSON text contains it."""


class Combinations:
    """A column of combinations of JSON texts that grows piece by piece.

    A program repeats the same work, so its arguments repeat too: a few hundred combinations in millions of events. Each
    row keeps the code of its combination, and each combination is read once. Code 0 is the empty one.
    """

    __slots__ = ("_codes", "_numbers")

    def __init__(self, size: int) -> None:
        self._codes = Codes({_BETWEEN * (size - 1): 0})
        self._numbers = Numbers(np.int32)

    def add(self, has_texts: Flags, texts: Iterable[Sequence[bytes | msgspec.Raw]]) -> None:
        """Append a piece; `texts` has only the marked rows, and an empty text for each absent value."""
        codes = np.fromiter(map(self._codes.__getitem__, map(_BETWEEN.join, texts)), np.int32)
        self._numbers.add(spread(codes, has_texts, 0))

    def codes(self) -> NDArray[np.int32]:
        """Return the code of each row; nothing can be added afterwards."""
        return self._numbers.array()

    def distinct(self) -> list[list[bytes]]:
        """Return the combinations in the order of their codes."""
        return [combination.split(_BETWEEN) for combination in self._codes]


class Kinds:
    """Columns of few distinct values that grow together: one lookup and one code for all of them.

    Each predicate in `signs` is evaluated once per combination of values; `marked` returns its result for rows.
    """

    __slots__ = ("_codes", "_marks", "_numbers", "_signs")

    def __init__(self, *signs: Callable[[tuple[Any, ...]], bool]) -> None:
        self._codes = Codes()
        self._numbers = Numbers(np.int32)
        self._signs = signs
        self._marks = np.zeros(0, np.uint8)

    def look_up(self, *columns: Sequence[object]) -> NDArray[np.int32]:
        """Return the codes of rows without appending them."""
        return np.fromiter(map(self._codes.__getitem__, zip(*columns, strict=True)), np.int32, len(columns[0]))

    def marks(self, codes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return for each row the flags that are set, one bit per flag, the first as the lowest bit."""
        if len(self._marks) < len(self._codes):
            new = [
                sum(has_flag(key) << place for place, has_flag in enumerate(self._signs))
                for key in islice(self._codes, len(self._marks), None)
            ]
            self._marks = np.append(self._marks, np.array(new, np.uint8))
        return self._marks[codes]

    def marked(self, sign: int, codes: NDArray[np.int32]) -> Flags:
        """Return for each row whether a flag is set."""
        return has(self.marks(codes), sign)

    def add(self, codes: NDArray[np.int32]) -> None:
        """Append rows."""
        self._numbers.add(codes)

    def arrays(self, spellings: Sequence[Callable[[object], str]]) -> list[pa.DictionaryArray]:
        """Return the columns, each with its spelling, and with only the values of appended rows."""
        codes = self._numbers.array()
        used = np.zeros(len(self._codes), bool)
        used[codes] = True
        keys = [key for key, own in zip(self._codes, used.tolist(), strict=True) if own]
        if len(keys) < len(used):
            codes = (np.cumsum(used) - 1).astype(np.int32)[codes]
        return [_spelt(codes, [key[place] for key in keys], spell) for place, spell in enumerate(spellings)]


def has(marks: NDArray[np.uint8], sign: int) -> Flags:
    """Return where a flag is set."""
    return np.asarray(marks & (1 << sign), bool)


def _spelt(codes: NDArray[np.int32], values: Iterable[object], spelling: Callable[[object], str]) -> pa.DictionaryArray:
    """Convert coded values to texts; the texts are in the order of their first occurrence."""
    new_code, texts = text_codes(map(spelling, values))
    return coded(new_code[codes] if len(texts) < len(new_code) else codes, texts)


def plain_text(value: object) -> str:
    """Convert a value to text that can be stored."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).encode("utf-8", "replace").decode("utf-8")


CHUNK = 1 << 30
"""Size in bytes at which a new array is started, because offsets are 32 bits wide."""


_ROWS = 1 << 16
"""Number of rows copied at once."""


class ArgumentTexts:
    """A column of texts that are mostly distinct."""

    __slots__ = ("_done", "_sizes", "_text")

    def __init__(self) -> None:
        self._text = LongText()
        self._sizes = Numbers(np.int32)
        self._done: list[pa.Array] = []

    def add(self, text: bytes, sizes: NDArray[np.int32] | Ints) -> None:
        """Append a piece: its texts concatenated without separators, and the size of each."""
        self._text.add(text)
        self._sizes.add(sizes)
        if len(self._text) >= CHUNK:
            self._close()

    def array(self) -> pa.ChunkedArray:
        """Return the column; nothing can be added afterwards."""
        self._close()
        return pa.chunked_array(self._done, pa.string())

    def add_array(self, texts: pa.StringArray) -> None:
        """Append the texts of an Arrow array."""
        if not len(texts):
            return
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        text_bytes = data[int(bounds[0]) : int(bounds[-1])].to_pybytes() if data else b""
        self.add(text_bytes, np.diff(bounds))

    def _close(self) -> None:
        sizes = self._sizes.array()
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        self._done.append(pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), self._text.buffer()))
        self._text, self._sizes = LongText(), Numbers(np.int32)


def filter_texts(texts: pa.ChunkedArray, keep: Flags) -> pa.ChunkedArray:
    """Filter texts part by part, so that only one part at a time is copied in memory."""
    out, at = ArgumentTexts(), 0
    for chunk in texts.chunks:
        for begin in range(0, len(chunk), _ROWS):
            part = chunk.slice(begin, _ROWS)
            out.add_array(part.filter(array_of(keep[at : at + len(part)])))
            at += len(part)
            release_pages()
    return out.array()


def take_texts(texts: pa.ChunkedArray, rows: Ints) -> pa.Array:
    """Take rows chunk by chunk.

    Arrow's own take on many chunks is 20x slower, and joining the chunks copies everything.
    """
    if texts.num_chunks == 1:
        return texts.chunk(0).take(index_of(rows))
    ends = np.cumsum([len(chunk) for chunk in texts.chunks])
    chunk_of_row = np.searchsorted(ends, rows, side="right")
    parts, places = [], []
    for number, chunk in enumerate(texts.chunks):
        place = np.flatnonzero(chunk_of_row == number)
        parts.append(chunk.take(index_of(rows[place] - (ends[number] - len(chunk)))).cast(pa.large_string()))
        places.append(place)
    return pa.concat_arrays(parts).take(index_of(np.argsort(np.concatenate(places))))
