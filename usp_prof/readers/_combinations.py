"""Which combination of a few arguments does an event have? A code for each, and each distinct one once.

A program that does the same again and again says the same again and again: a few hundred combinations in millions of
events, of which reading each once is next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.readers._names import Codes
from usp_prof.readers.arrays import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    import pyarrow as pa
    from numpy.typing import NDArray

_BETWEEN = b"\0"


class Combinations:
    """The distinct combinations of what stands behind some keys; the first is that nothing does."""

    __slots__ = ("_codes", "_keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._codes = Codes({_BETWEEN * (len(keys) - 1): 0})

    def __len__(self) -> int:
        """Count them."""
        return len(self._codes)

    def codes(self, texts: Iterable[Sequence[msgspec.Raw | bytes]], rows: int) -> NDArray[np.int32]:
        """Give the codes of rows, by what stands behind each of the keys (nothing where the key is not there)."""
        return np.fromiter(map(self._codes.__getitem__, map(_BETWEEN.join, texts)), np.int32, rows)

    def texts(self) -> pa.StringArray:
        """Give them as JSON objects, in the order of their codes."""
        return texts_of([*map(self._object, self._codes)])

    def _object(self, combination: bytes) -> str:
        """Make a JSON object: a part is JSON as it stands, an empty one is left out."""
        said = zip(self._keys, combination.decode().split(_BETWEEN.decode()), strict=True)
        return "{" + ",".join(f'"{key}":{text}' for key, text in said if text) + "}"
