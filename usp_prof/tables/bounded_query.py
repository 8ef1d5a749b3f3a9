"""Bounded query: one SELECT in a process of its own, which can be ended at any moment and whose memory is limited.

DuckDB can be interrupted between chunks of rows only. One call inside a chunk, such as `lpad('x', 2000000000, 'y')`,
runs for minutes and takes gigabytes. Here it runs in a child process: the question goes in as JSON on standard input,
the answer comes back on standard output as Arrow's stream format.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import msgspec
import pyarrow as pa

from usp_prof.model.errors import UsageError
from usp_prof.tables.sql_cells import Cells, answer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_BYTES = 2 << 30
"""Memory that DuckDB may use for one question; what needs more spills to disk, or is refused."""
_OVERHEAD_BYTES = 1 << 30
"""What Python, Arrow and DuckDB allocate beyond the question's own data."""
_REFUSED = 3
"""Exit code of a question that DuckDB refuses; its reason is on standard error."""


class Question(msgspec.Struct, frozen=True):
    """One SELECT, the files of the tables that it names, and how its answer is wanted."""

    sql: str
    settings: dict[str, str]
    parquet: dict[str, list[str]]
    arrow: dict[str, str]
    rows: int | None
    cells: Cells
    is_explain: bool


class RefusedError(Exception):
    """DuckDB refuses the question, for the reason in the message."""


def ask(question: Question, tables: Mapping[str, pa.Table], seconds: float) -> pa.Table:
    """Answer a question in a process of its own; `tables` has those that are in no Parquet file."""
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
    """Answer the question on standard input; the exit code says whether it was refused."""
    _limit_memory()
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    try:
        table = _answered(question)
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
    """Let the system refuse memory beyond the limit, where it can: one call of DuckDB's may take any amount."""
    try:
        import resource  # noqa: PLC0415 - POSIX only
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES + _OVERHEAD_BYTES,) * 2)


if __name__ == "__main__":
    sys.exit(main())
