"""Relations: the tables in SQL, one SELECT over all ranks, with access to nothing but the tables."""

from __future__ import annotations

import math
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import msgspec
import pyarrow as pa

from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.tables import catalog
from usp_prof.tables.bounded_query import Question, RefusedError, ask
from usp_prof.tables.build import empty
from usp_prof.tables.sql_cells import Cells, answer_of
from usp_prof.tables.table_set import TableSet

_SETTINGS = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}
_WORD = re.compile(r"\w+")
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?:ANALYZE\s+)?(?:\([^()]*\)\s*)?", re.IGNORECASE)
_LISTINGS = {"show", "information_schema", "duckdb_tables", "duckdb_views", "duckdb_columns", "pg_catalog"}
"""Words of queries that list tables or columns."""
_OF_THE_ENGINE = re.compile(
    r"""\b(?:duckdb_(?!tables|views|columns|functions|types|constraints|keywords)\w+|pragma_(?!table_info|show)\w+
    |current_setting|which_secret|getenv|query(?:_table)?(?="?\s*\())\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Functions that read the engine's settings, files and secrets, or run a text as SQL."""
_MISSING_TABLE = re.compile(r"Catalog Error: Table with name (.+) does not exist!")
_HINT = "`usp-prof tables` documents every table and column"


def _place_of_overflow() -> str:
    """Return a folder for data that does not fit in memory; DuckDB would use the current folder.

    It is created on demand and removed with the connection. Without a writable folder, such a query is refused.
    """
    try:
        return str(Path(tempfile.gettempdir(), f"usp-prof-sql-{uuid4().hex}"))
    except OSError:
        return ""


def _refused(error: str) -> UsageError:
    """Return why DuckDB refuses a SELECT as one line, with the nearest table name if one is unknown."""
    missing = _MISSING_TABLE.search(error)
    if missing is not None:
        unknown = unknown_name("table", missing[1], [schema.name for schema in catalog.SCHEMAS])
        return UsageError(unknown.message, hint=f"{unknown.hint} ({_HINT})")
    return UsageError(f"the SQL failed: {_in_a_line(error)}", hint=_HINT)


def _in_a_line(error: str) -> str:
    """Return DuckDB's reason without the SQL, which follows LINE with a mark at the place."""
    return " ".join(error.partition("\nLINE ")[0].split())


class Relations:
    """The tables of a run in DuckDB, each registered on first use."""

    def __init__(self, tables: TableSet, files: Mapping[str, Sequence[Path]] | None = None) -> None:
        """Store the tables of a run; those in `files` are Parquet files, which are read only in part."""
        self._tables = tables
        self._files = dict(files or {})
        self._connection = duckdb.connect(":memory:", config={**_SETTINGS, "temp_directory": _place_of_overflow()})
        self._connection.execute("SET lock_configuration = true")
        self._known = {schema.name for schema in catalog.SCHEMAS}
        self._registered: set[str] = set()
        self._lock = threading.Lock()

    def table(self, name: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Return one table of all ranks."""
        catalog.schema(name)
        return self.query(f'SELECT * FROM "{name}"')  # noqa: S608 - a known name

    def query(self, sql: str) -> Any:  # noqa: ANN401 - a DuckDB relation
        """Run one SELECT."""
        self._check(sql)
        with self._lock:
            for name, source in self._sources(sql, self._registered).items():
                self._connection.register(name, source)
            self._registered |= {word.lower() for word in _WORD.findall(sql)} & self._known
            try:
                return self._connection.sql(sql)
            except duckdb.Error as error:
                raise _refused(str(error)) from None

    def answer(
        self, sql: str, *, rows: int | None = None, seconds: float = math.inf, cells: Cells = Cells.TYPED
    ) -> pa.Table:
        """Run one SELECT with limits: its first rows, or an error at the limit of time or memory.

        A query with a time limit runs in a separate process. Thread-safe.
        """
        is_explain = self._check(sql) == duckdb.StatementType.EXPLAIN
        if not math.isinf(seconds):
            return self._within(seconds, Question(sql, _SETTINGS, {}, {}, rows, cells, is_explain))
        cursor = self._connection.cursor()  # one query per connection at a time
        try:
            with self._lock:
                for name, source in self._sources(sql, set()).items():
                    cursor.register(name, source)
            return answer_of(cursor.sql(sql), rows, cells, is_explain=is_explain)
        except (duckdb.Error, pa.ArrowException) as error:
            raise _refused(str(error)) from None
        finally:
            cursor.close()

    def _within(self, seconds: float, question: Question) -> pa.Table:
        """Run a query in a separate process, which reads stored tables from their files."""
        with self._lock:
            sources = self._sources(question.sql, set())
        tables = {name: source for name, source in sources.items() if isinstance(source, pa.Table)}
        files = {name: [str(file) for file in self._files[name]] for name in sources.keys() - tables.keys()}
        try:
            return ask(msgspec.structs.replace(question, parquet=files), tables, seconds)
        except RefusedError as error:
            raise _refused(str(error)) from None

    def _check(self, sql: object) -> duckdb.StatementType | None:
        """Refuse anything but one SELECT or an EXPLAIN of one; return its kind."""
        if not isinstance(sql, str):
            raise UsageError(f"SQL is a text, not {sql!r}", hint=_HINT)
        if (function := _OF_THE_ENGINE.search(sql)) is not None:
            raise UsageError(f"{function[0]} is not allowed: SQL can read the tables only", hint=_HINT)
        kind = inner = self._kind(sql)
        # EXPLAIN ANALYZE executes the statement, which may be a DROP or a CREATE.
        if kind == duckdb.StatementType.EXPLAIN and (prefix := _EXPLAIN.match(sql)):
            inner = self._kind(sql[prefix.end() :])
        if inner != duckdb.StatementType.SELECT:
            raise UsageError("only a single SELECT is allowed; the tables cannot be changed", hint=_HINT)
        return kind

    def _kind(self, sql: str) -> duckdb.StatementType | None:
        """Return the kind of a single statement; `None` for several or none."""
        try:
            sql.encode()  # bytes of a command line that are not UTF-8 are lone surrogates here
            statements = self._connection.cursor().extract_statements(sql)
        except UnicodeEncodeError:
            raise UsageError("the SQL is not UTF-8", hint=_HINT) from None
        except duckdb.Error as error:
            raise UsageError(f"the SQL cannot be read: {_in_a_line(str(error))}", hint=_HINT) from None
        return statements[0].type if len(statements) == 1 else None

    def _sources(self, sql: str, registered: set[str]) -> dict[str, Any]:
        """Return the tables that a query names and a connection does not know yet."""
        words = dict.fromkeys(word.lower() for word in _WORD.findall(sql))
        sources = {word: self._source(word) for word in words if word in self._known - registered}
        if _LISTINGS & words.keys():
            # A list of tables needs only names and columns; each table is registered when a query names it.
            sources |= {name: empty(catalog.schema(name)) for name in sorted(self._known - registered - words.keys())}
        return sources

    def _source(self, name: str) -> Any:  # noqa: ANN401 - anything that DuckDB can scan
        """Return a table from which DuckDB reads only the columns and rows that the query needs."""
        from pyarrow import dataset  # noqa: PLC0415 - it loads pandas, which a process that reads ranks does not need

        files = self._files.get(name)
        return dataset.dataset([str(file) for file in files]) if files else self.arrow(name)

    def arrow(self, name: str) -> pa.Table:
        """Return one table of all ranks as Arrow."""
        build = catalog.RUN_TABLES.get(name)
        return build(self._tables) if build is not None else self._tables.arrow(name)
