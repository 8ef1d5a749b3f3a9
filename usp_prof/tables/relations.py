"""How does a person ask the tables? In SQL, over all ranks at once, with nothing but the tables within reach."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import duckdb

from usp_prof.model.errors import UsageError
from usp_prof.tables import catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from usp_prof.tables.table_set import TableSet

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}
_WORD = re.compile(r"\w+")
_HINT = "`usp-prof tables` documents every table and column"


class Relations:
    """The tables of a run as DuckDB sees them; each is brought in when it is first asked for."""

    def __init__(self, tables: TableSet, files: Mapping[str, Sequence[Path]] | None = None) -> None:
        """Take the tables of a run; those that `files` names lie in Parquet as they are, and are read in part only."""
        self._tables = tables
        self._files = dict(files or {})
        self._connection = duckdb.connect(":memory:", config=_SETTINGS)
        self._connection.execute("SET lock_configuration = true")
        self._known = {schema.name for schema in catalogue.SCHEMAS}
        self._registered: set[str] = set()
        self._lock = threading.Lock()

    def table(self, name: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Give one table of all ranks."""
        catalogue.schema(name)
        return self.query(f'SELECT * FROM "{name}"')  # noqa: S608 - a known name

    def query(self, sql: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Answer one SELECT."""
        try:
            statements = self._connection.extract_statements(sql)
        except duckdb.Error as error:
            raise UsageError(f"the SQL cannot be read: {error}", hint=_HINT) from None
        if len(statements) != 1 or statements[0].type not in {
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        }:
            raise UsageError("only one SELECT can be asked at a time; the tables cannot be changed", hint=_HINT)
        with self._lock:
            for word in dict.fromkeys(word.lower() for word in _WORD.findall(sql)):
                if word in self._known - self._registered:
                    self._connection.register(word, self._source(word))
                    self._registered.add(word)
            try:
                return self._connection.sql(sql)
            except duckdb.Error as error:
                raise UsageError(f"the SQL cannot be answered: {error}", hint=_HINT) from None

    def _source(self, name: str) -> Any:  # noqa: ANN401 - whatever DuckDB scans
        """Give a table so that DuckDB reads no more columns and rows of it than the question needs."""
        from pyarrow import dataset  # noqa: PLC0415 - it loads pandas, which a process that reads ranks does not need

        files = self._files.get(name)
        return dataset.dataset([str(file) for file in files]) if files else self.arrow(name)

    def arrow(self, name: str) -> pa.Table:
        """Give one table of all ranks as Arrow."""
        build = catalogue.RUN_TABLES.get(name)
        return build(self._tables) if build is not None else self._tables.arrow(name)
