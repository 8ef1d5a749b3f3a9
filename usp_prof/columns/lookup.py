"""Look-ups without loops: the value of each code, and the row of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def lookup(values: Iterable[Any] | NDArray[Any], codes: NDArray[Any], *, missing: str | float) -> NDArray[Any]:
    """Give each row the value of its code; -1, and the code behind the last value, give `missing`.

    Texts come as objects. So a property of a name is found once for each distinct name, not for each row:

        codes, names = launches.codes("name")
        allocates = lookup([name in ALLOCATORS for name in names], codes, missing=False)
    """
    if isinstance(values, np.ndarray):
        return np.asarray(np.append(values, missing)[codes])
    # `missing` is the last value: -1 indexes it from the end.
    by_code = np.array([*values, missing], dtype=object if isinstance(missing, str) else None)
    return np.asarray(by_code[codes])


def rows_of(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Give for each wanted key the row of `keys` that has it first; -1 where none has. Negative keys mean none.

    rows_of([7, 3, 7], [7, 5, -1]) == [0, -1, -1]
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low > 8 * (len(keys) + len(wanted)) + (1 << 10):
        order = np.argsort(keys, kind="stable")
        row = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
        return np.where((keys[row] == wanted) & (wanted >= 0), row, -1)
    # Keys that lie close together, as event numbers do, index a list; its last entry stands for every other key.
    row_of_key = np.full(high - low + 2, -1, np.int64)
    row_of_key[keys[::-1] - low] = np.arange(len(keys) - 1, -1, -1)
    known = (wanted >= max(low, 0)) & (wanted <= high)
    return row_of_key.take(np.where(known, wanted - low, high - low + 1))
