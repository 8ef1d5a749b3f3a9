"""Command output: it fits a terminal of 80 columns, and a closed pipe (`... | head`) ends it silently."""

from __future__ import annotations

import argparse
import os
import re
import sys
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli.app import Exit, build_parser, main
from usp_prof.cli.command_files import command_files
from usp_prof.cli.wrapping import wrapped, wrapped_command, wrapped_page
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 80
DECLARED = {
    "mesh": {"dp": 2, "pp": 2}, "seed": 5, "shape": {"layers": 2}, "work": {"steps": 3, "micro_batches": 3},
    "faults": [{"kind": "slow_rank", "rank": 1, "factor": 1.4}],
}  # fmt: skip
PLAN = (
    "plan --model Llama-3-8B --sequence 8192 --devices 8 --device H100 --batch 64 --tp 2 --pp 2 --dp 2 --micro-batch 1"
)
WITH_OUTPUT = [
    "info RUN",
    "analyze RUN",
    "analyze RUN --section all",
    "query RUN 'SELECT * FROM ops'",
    "tables",
    "check RUN --baseline baseline.json",
    "check RUN --min mfu=0.9",
    "compare RUN RUN --all",
    "whatif RUN --edit comm_faster=2 --edit rank_as_peers=1",
    "whatif RUN --ideal",
    "whatif RUN --list",
    PLAN,
    "plan --devices-known",
    "memory RUN",
    "memory --model Llama-3-70B --sequence 8192 --tp 8 --pp 4 --device H100",
    "learn",
    "explain",
    "explain late-rank",
    "explain missing_ranks",
    "explain rank_as_peers",
    "trend runs.parquet",
    "cache info",
]
"""One line per report; RUN is replaced by the synthetic run."""
AS_FILES = [
    "info RUN --format json",
    "analyze RUN --format json",
    "analyze RUN --format markdown",
    "query RUN 'SELECT * FROM ops' --format csv",
    "query RUN 'SELECT * FROM ops' --format json",
    "check RUN --baseline baseline.json --format json",
    "compare RUN RUN --format markdown",
    "whatif RUN --edit comm_faster=2 --format json",
    f"{PLAN} --format json",
    "memory RUN --format json",
    "trend runs.parquet --format json",
]


class Terminal(StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the visible text, without control sequences for bold."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run, its baseline and a history."""
    made = tmp_path_factory.mktemp("screens")
    write(Declaration.from_dict(DECLARED), made / "run")
    cache = ["--cache-dir", str(made / "cache"), "-q"]
    baseline = str(made / "baseline.json")
    assert main(["baseline", "save", str(made / "run"), "-o", baseline, *cache]) == 0
    history = ["--history", str(made / "runs.parquet")]
    assert main(["check", str(made / "run"), "--baseline", baseline, *history, *cache]) in {0, 1}
    return made


@pytest.fixture(autouse=True)
def screen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("USP_PROF_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")


def words_of(line: str) -> list[str]:
    before, _, rest = line.partition("'")
    quoted, _, after = rest.partition("'")
    return [word.replace("RUN", "run") for word in [*before.split(), *([quoted] if quoted else []), *after.split()]]


@pytest.mark.parametrize("line", WITH_OUTPUT)
def test_a_report_fits_the_terminal(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(words_of(line)) in ({0, 1, 2} if line.startswith("check") else {0})
    assert [shown for shown in terminal.lines() if len(shown) > WIDTH] == []


@pytest.mark.parametrize("line", WITH_OUTPUT)
def test_colors_reach_a_terminal_as_control_sequences(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`whatif` and `compare` used to print them as visible symbols."""
    terminal = Terminal()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", terminal)
    main(words_of(line))
    assert "\N{SYMBOL FOR ESCAPE}" not in terminal.getvalue()


@pytest.mark.parametrize("name", ["", *command_files()])
def test_help_fits_the_terminal(name: str) -> None:
    parser = build_parser(name)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    text = (commands.choices[name] if name else parser).format_help()
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("line", [*WITH_OUTPUT, *AS_FILES, "--help", "analyze --help"])
def test_a_reader_that_closes_the_pipe_ends_the_command_silently(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        status = main([*words_of(line), *([] if "--help" in line else ["-q"])])
    assert status == Exit.CLOSED_PIPE
    assert capsys.readouterr().err == ""


def test_query_numbers_are_never_cut_and_omitted_columns_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time split over two lines would be read as two times."""
    sql = "SELECT " + ", ".join(f"1795267456743292284 + {place} AS time_{place}" for place in range(6))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["query", "run", sql]) == 0
    head, _, row = terminal.lines()
    assert head.split() == ["time_0", "time_1", "time_2"]
    assert row.split() == [str(1795267456743292284 + place) for place in range(3)]
    assert "columns not shown: time_3, time_4, time_5" in capsys.readouterr().err


def test_piped_output_has_every_column_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """COLUMNS is set, as many shells and test runners export it, but a pipe has no width."""
    assert main(["query", "run", "SELECT " + ", ".join(f"'{place:60}' AS c{place}" for place in range(5))]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert (len(head.split()), len(row.split())) == (5, 5)


def test_wrapped_lines_are_indented_below_their_first_line() -> None:
    assert wrapped("  code  one two three four five six seven eight nine", 40, hanging=6) == (
        "  code  one two three four five six\n        seven eight nine\n"
    )
    assert wrapped("short\n\nlines", 40) == "short\n\nlines\n"


def test_a_wrapped_page_keeps_headings_and_fills_paragraphs() -> None:
    text = "What it does\n    one two three four five six seven eight\n    nine ten\n\nWhen"
    assert wrapped_page(text, 60) == text
    assert wrapped_page(text, 40) == ("What it does\n    one two three four five six seven\n    eight nine ten\n\nWhen")


def test_a_wrapped_command_uses_backslashes_and_keeps_options_with_values() -> None:
    shown = wrapped_command("A=1 torchrun --nproc-per-node 8 run.py --name 'a b' --flag --size 5", 40)
    assert shown == "A=1 torchrun --nproc-per-node 8 run.py \\\n    --name 'a b' --flag --size 5"


def test_a_check_states_each_reason_once_with_its_metrics(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    write(Declaration.from_dict({**DECLARED, "seed": 99}), folder / "other")
    main(["check", "other", "--baseline", "baseline.json"])
    reasons = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and ": " in line]
    reason_texts = [line.partition(": ")[2] for line in reasons]
    assert any(" more" in line for line in reasons)
    assert len(reason_texts) == len(set(reason_texts))
