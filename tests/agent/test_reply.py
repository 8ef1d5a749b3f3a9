"""Replies to an agent: plain, short JSON that stays harmless for any names in the traces."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client
from tiny import Trace, write

from usp_prof.extras.agent.answers import QUESTIONS, Answers
from usp_prof.extras.agent.folders import Folders
from usp_prof.extras.agent.reply import LONGEST_TEXT, MOST_ROWS, Reply, plain, table_of_arrow, table_of_frame
from usp_prof.extras.agent.server import build

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b[31mred\x07\x9b2J\u202e\n::error file=a::stolen\n##vso[task.setvariable]x"
UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ORDER = re.compile(r"^\s*(::[a-z-]+(\s.*)?::|##\[|##vso\[)", re.MULTILINE)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (np.int64(7), 7),
        (np.bool_(True), True),
        (1234567.89, 1234570.0),
        (math.nan, None),
        (math.inf, None),
        (None, None),
        (Decimal(3), 3),  # a sum of integers in SQL
        (Decimal("0.5"), 0.5),
        ("tp", "tp"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_cells_are_plain_json(cell: object, expected: object) -> None:
    assert plain(cell) == expected
    assert type(plain(cell)) is type(expected)


def test_long_names_are_cut() -> None:
    assert plain("x" * 1000) == "x" * LONGEST_TEXT + "..."


def test_a_reply_limits_rows_and_states_that_there_are_more() -> None:
    table = table_of_frame("here", pd.DataFrame({"a_ns": range(1000)}), rows=10**9)
    assert (len(table.rows), table.more) == (MOST_ROWS, True)


def test_columns_with_equal_names_stay_separate() -> None:
    table = table_of_arrow("here", pa.table([[1], [2]], names=["n", "n"]), rows=5)
    assert Reply("", (table,)).plain()["tables"][0]["rows"] == [[1, 2]]


def test_names_from_traces_control_neither_terminal_nor_log(tmp_path: Path) -> None:
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2).group(EVIL, [0, 1], EVIL).meta(host_name=EVIL)
        for step in range(4):
            at = step * 20_000
            trace.step(step, at, 19_000).mark(EVIL, at + 10, 900).op(EVIL, at + 300, 400)
            trace.kernel(EVIL, at + 2000, 6000, launch_at=at + 350)
            trace.collective("all_reduce", at + 10_000, 900 + 3000 * rank, launch_at=at + 900, group=EVIL, nelems=64)
        traces[rank] = trace
    write(traces, tmp_path / "runs" / "run \x1b[31m")
    server = build(Answers(Folders([str(tmp_path / "runs")]), str(tmp_path / "cache")))
    path = "run \x1b[31m"
    questions = [
        ("open", {}), ("open", {"path": path}), ("summary", {"path": path}), ("findings", {"path": path}),
        *(("summary", {"path": path, "question": question}) for question in QUESTIONS),
        ("sql", {"path": path, "query": "SELECT name FROM ops"}),
        ("sql", {"path": path, "query": 'SELECT 1 AS "' + EVIL + '"'}),
        ("sql", {"path": path, "query": f"SELECT {EVIL}"}),
        ("open", {"path": EVIL}),
    ]  # fmt: skip
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        for tool, arguments in questions:
            result = portal.call(partial(client.call_tool, tool, arguments))
            text = result.content[0].text
            strings = [text] if result.is_error else list(strings_of(json.loads(text)))
            assert strings
            for string in strings:
                assert not UNSHOWN.search(string), (tool, string)
                assert not ORDER.search(string), (tool, string)


def strings_of(value: object) -> list[str]:
    """Gather every text of a reply as the agent decodes it."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in strings_of(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings_of(part)]
    return [value] if isinstance(value, str) else []
