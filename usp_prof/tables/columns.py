"""How does an analysis see a table? As NumPy arrays by column name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Columns:
    """The columns of one table of one rank. Integers are int64, flags bool, texts dictionary-coded until asked for."""

    __slots__ = ("_arrays", "_table")

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._arrays: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._table.num_rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Give one column; texts come as an array of str objects."""
        if name not in self._arrays:
            if name not in self._table.column_names:
                raise unknown_name("column", name, self._table.column_names)
            chunked = self._table.column(name)
            if _is_text(chunked.type):
                codes, values = self.codes(name)
                self._arrays[name] = np.asarray([*values, ""], dtype=object)[codes]
            else:
                self._arrays[name] = chunked.to_numpy()
        return self._arrays[name]

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Give a text column as codes and the distinct texts, to group and classify without touching every row."""
        codes, values = self.narrow_codes(name)
        return codes.astype(np.int64), values

    def narrow_codes(self, name: str) -> tuple[NDArray[Any], list[str]]:
        """Give the same with codes as narrow as they are kept, of which no copy is made."""
        chunked = self._table.column(name)
        if not pa.types.is_dictionary(chunked.type):
            chunked = chunked.dictionary_encode()
        single = chunked.num_chunks == 1
        combined = chunked.chunk(0) if single else chunked.unify_dictionaries().combine_chunks()
        if isinstance(combined, pa.ChunkedArray):  # zero chunks
            combined = pa.array([], pa.string()).dictionary_encode()
        values = combined.dictionary.to_pylist()
        codes = combined.indices
        if codes.null_count:
            codes, values = codes.fill_null(len(values)), [*values, ""]
        return codes.to_numpy(), values

    def matches(self, name: str, *wanted: str) -> NDArray[np.bool_]:
        """Say for each row whether a text column is one of the wanted texts."""
        codes, values = self.codes(name)
        hits = np.array([value in wanted for value in values] + [False], dtype=bool)
        return hits[codes]

    def take(self, rows: NDArray[Any]) -> Columns:
        """Keep the rows of a mask or of an index array."""
        if rows.dtype == np.bool_:
            return Columns(self._table.filter(pa.array(rows)))
        return Columns(self._table.take(pa.array(rows)))

    @property
    def arrow(self) -> pa.Table:
        """The table itself."""
        return self._table


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
