"""Bounded query: one SELECT in a separate process with limited time and memory.

DuckDB can only be interrupted between chunks of rows. One call inside a chunk, such as `lpad('x', 2000000000, 'y')`,
runs for minutes and uses gigabytes. A child process can be stopped at any time. It reads the query as JSON from
standard input, and writes the result to standard output in Arrow's stream format.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import msgspec
import pyarrow as pa

from usp_prof.model.errors import UsageError
from usp_prof.tables.sql_cells import Cells, answer_of

MEMORY_BYTES = 2 << 30
"""Memory that DuckDB may use per query; queries that need more spill to disk, or are rejected."""
_OVERHEAD_BYTES = 1 << 30
"""Memory that Python, Arrow and DuckDB allocate in addition to the query's own data."""
_NO_MEMORY = 1
"""Exit code of a query that needs too much memory. Python has the same one if it runs out of memory."""
_REFUSED = 3
"""Exit code of a query that DuckDB rejects; the reason is on standard error."""


class Question(msgspec.Struct, frozen=True):
    """One SELECT, the files of the tables that it names, and the form of its result."""

    sql: str
    settings: dict[str, str]
    parquet: dict[str, list[str]]
    arrow: dict[str, str]
    rows: int | None
    cells: Cells
    is_explain: bool


class RefusedError(Exception):
    """Raised if DuckDB rejects the query; the message has the reason."""


def ask(question: Question, tables: Mapping[str, pa.Table], seconds: float) -> pa.Table:
    """Run a query in a separate process; `tables` has the tables that are not in Parquet files."""
    with TemporaryDirectory(prefix="usp-prof-sql-") as folder:
        files = {name: str(Path(folder, f"{name}.arrow")) for name in tables}
        for name, table in tables.items():
            with pa.OSFile(files[name], "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        question = msgspec.structs.replace(
            question,
            arrow=files,
            settings={
                "temp_directory": str(Path(folder, "spill")),
                "memory_limit": f"{MEMORY_BYTES}B",
                **question.settings,
            },
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        ) as child:  # fmt: skip
            try:
                answer, reason = child.communicate(msgspec.json.encode(question), timeout=seconds)
            except subprocess.TimeoutExpired:
                hint = "ask for less: fewer ranks, steps or columns"
                raise UsageError(f"the SQL took longer than {seconds:g} s", hint=hint) from None
            finally:
                child.kill()
        if child.returncode == _REFUSED:
            raise RefusedError(reason.decode())
        if child.returncode:
            hint = "ask for less: fewer ranks, steps or columns"
            raise UsageError(f"the SQL needs more than {MEMORY_BYTES >> 30} GiB of memory", hint=hint)
        return pa.ipc.open_stream(answer).read_all()


def main() -> int:
    """Run the query on standard input; the exit code shows whether it was rejected."""
    _limit_memory()
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    try:
        table = _answered(question)
    except duckdb.OutOfMemoryException:  # its text advises settings that a query cannot change
        return _NO_MEMORY
    except (duckdb.Error, pa.ArrowException) as error:
        sys.stderr.buffer.write(str(error).encode("utf-8", "replace"))
        return _REFUSED
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
        writer.write_table(table)
    return 0


def _answered(question: Question) -> pa.Table:
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
    for name, files in question.parquet.items():
        connection.read_parquet(files).create_view(name)
    connection.execute("SET allowed_paths = $1", [[file for files in question.parquet.values() for file in files]])
    for setting, value in question.settings.items():
        connection.execute(f"SET {setting} = '{value.replace(chr(39), 2 * chr(39))}'")
    for name, file in question.arrow.items():
        connection.register(name, pa.ipc.open_file(pa.memory_map(file)).read_all())
    connection.execute("SET lock_configuration = true")
    return answer_of(connection.sql(question.sql), question.rows, question.cells, is_explain=question.is_explain)


def _limit_memory() -> None:
    """Limit the process's memory if the system supports it: one DuckDB call may allocate any amount."""
    try:
        import resource  # noqa: PLC0415 - POSIX only
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES + _OVERHEAD_BYTES,) * 2)


if __name__ == "__main__":
    sys.exit(main())
