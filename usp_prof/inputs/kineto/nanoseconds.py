"""Times in integer nanoseconds: decimal microseconds, as float or text, converted exactly to int64."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, DecimalException

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Floats, Ints

FLOAT_IS_EXACT_BELOW = float(1 << 43)
"""Microseconds with three decimals are exact in a double below this value: half its spacing is 0.488 ns."""

ABSENT = np.int64(np.iinfo(np.int64).min)
"""Marks a time that is missing or not a number."""

_LIMIT_US = 9.2e15
_LIMIT_WHOLE_US = np.iinfo(np.int64).max // 1000


def from_floats(us: Floats) -> tuple[Ints, int]:
    """Return nanoseconds, and the number of values finer than one nanosecond (they are rounded)."""
    size = np.abs(us)
    useless = ~(size < _LIMIT_US)
    if useless.any():
        us, size = np.where(useless, 0.0, us), np.where(useless, 0.0, size)
    # Integer part and thousandths separately: their product in one float would lose nanoseconds.
    whole_us = np.floor(us)
    thousandths = (us - whole_us) * 1000.0
    nearest = np.rint(thousandths)
    ns = whole_us.astype(np.int64) * 1000 + nearest.astype(np.int64)
    ns[useless] = ABSENT
    finer = np.abs(thousandths - nearest) > 500.0 * np.spacing(size) + 1e-6
    return ns, int(np.count_nonzero(finer))


def from_whole(us: Sequence[int]) -> Ints:
    """Convert integer microseconds to nanoseconds; raise OverflowError if a number exceeds 64 bits."""
    whole_us = np.fromiter(us, np.int64, len(us))
    ns = whole_us * 1000
    ns[(whole_us > _LIMIT_WHOLE_US) | (whole_us < -_LIMIT_WHOLE_US)] = ABSENT
    return ns


def too_large_for_floats(us: Floats) -> bool:
    """Return whether a float may have lost nanoseconds of one of these."""
    return bool((np.abs(us) >= FLOAT_IS_EXACT_BELOW).any())


def from_texts(values: Sequence[bytes]) -> tuple[Ints, int]:
    """Convert numbers as text to nanoseconds; also return how many were finer than 1 ns (they are rounded)."""
    sizes = np.fromiter(map(len, values), np.int32, len(values))
    given = sizes > 0  # an empty text is a missing time
    if not given.all():
        values = [value or b"0" for value in values]
        sizes = np.maximum(sizes, 1)
    text_bytes = b"".join(values)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text_bytes))
    try:
        decimals = texts.cast(pa.decimal128(22, 3))
    except pa.ArrowInvalid:
        out, finer = _one_by_one(values)
        out[~given] = ABSENT
        return out, finer
    # A 128-bit decimal consists of two words, the low one first; for 64-bit values the high word repeats the sign.
    words = np.frombuffer(decimals.buffers()[1], dtype=np.int64)
    low, high = words[0::2].copy(), words[1::2]
    low[((low >> 63) != high) | ~given] = ABSENT
    return low, 0


def _one_by_one(values: Sequence[bytes]) -> tuple[Ints, int]:
    finer = 0
    out = np.full(len(values), ABSENT, np.int64)
    for row, value in enumerate(values):
        try:
            exact = Decimal(value.decode("ascii").strip('"')) * 1000
            if not exact.is_finite() or abs(exact) >= Decimal(_LIMIT_US) * 1000:
                continue
        except (DecimalException, UnicodeDecodeError):  # not a number, or out of bounds
            continue
        nearest = int(exact.to_integral_value())
        finer += exact != nearest
        out[row] = nearest
    return out, finer
