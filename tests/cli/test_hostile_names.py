"""Names are hostile: one run full of orders to terminals, CI systems, spreadsheets and browsers, at every door."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, write

from usp_prof.cli.app import main
from usp_prof.contract import Manifest
from usp_prof.model.printable import for_log, one_line, printable

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b[31mred\x07\x9b2J\u202e|<script>alert(1)</script>\n::error file=a::stolen\n##vso[task.setvariable]x"
FORMULA = "=HYPERLINK(1)"
UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ORDER = re.compile(r"^\s*(::[a-z-]+(\s.*)?::|##\[|##vso\[)", re.MULTILINE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil") / "run \x1b[31m::error::x"
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2).group(EVIL, [0, 1], EVIL).meta(host_name=EVIL, pytorch_version=EVIL)
        trace.metadata["deviceProperties"] = [{"id": 0, "name": EVIL}]
        for step in range(4):
            at = step * 20_000
            trace.step(step, at, 19_000).mark(EVIL, at + 10, 900).mark(FORMULA, at + 1000, 90)
            trace.op(EVIL, at + 300, 400, dims=[[4, 8], [8, 2]], types=[EVIL, "float"])
            trace.kernel(EVIL, at + 2000, 6000, launch_at=at + 350).kernel(FORMULA, at + 9000, 500)
            trace.collective("all_reduce", at + 10_000, 900 + 3000 * rank, launch_at=at + 900, group=EVIL, nelems=64)
        trace.events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 100, "args": {"name": EVIL}})
        traces[rank] = trace
    return write(traces, folder, Manifest(name=EVIL, notes=[EVIL], dtype=EVIL, recompute=EVIL))


@pytest.fixture(scope="module")
def baseline(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    assert main(["baseline", "save", str(run), "-o", str(path), "--cache-dir", str(path.parent / "cache")]) == 0
    return path


COMMANDS = (
    ("info",),
    ("info", "--format", "json"),
    ("analyze",),
    ("analyze", "--section", "all"),
    ("analyze", "--format", "json"),
    ("analyze", "--format", "markdown"),
    ("analyze", "--format", "html"),
    ("query", "SELECT DISTINCT name FROM annotations"),
    ("query", "--format", "csv", "SELECT DISTINCT name FROM annotations"),
    ("query", "--format", "json", "SELECT DISTINCT name FROM annotations"),
    ("whatif", "--edit", "comm_faster=2"),
    ("whatif", "--ideal"),
    ("compare",),
    *(("check", "--format", form) for form in ("terminal", "json", "markdown", "junit", "github")),
    ("analyze", "--run", EVIL),
    ("query", f"SELECT '{EVIL}'::INT"),
)


def typed(words: tuple[str, ...], run: Path, baseline: Path) -> list[str]:
    name, *rest = words
    paths = [str(run), str(run)] if name == "compare" else [str(run)]
    if name == "check":
        rest += ["--baseline", str(baseline)]
    if name == "query":
        return [name, *rest[:-1], *paths, rest[-1], "--cache-dir", str(baseline.parent / "cache")]
    return [name, *paths, *rest, "--cache-dir", str(baseline.parent / "cache")]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:40])
def test_no_command_lets_an_order_through(
    run: Path, baseline: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    status = main(typed(words, run, baseline))
    out, err = capsys.readouterr()
    assert status in {0, 1, 2}
    if "--format" in words and "json" in words:
        json.loads(out)
    own = r"^::(error|warning|notice) title=[^\n:]*::[^\n]*$"
    shown = re.sub(own, "", out, flags=re.MULTILINE) if "github" in words else out
    for text in (shown, err):
        assert UNSHOWN.search(text) is None, UNSHOWN.search(text)
        assert ORDER.search(text) is None, ORDER.search(text)
    if "html" in words:
        assert "<script>alert(1)" not in out


def test_a_spreadsheet_gets_no_formula(run: Path, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = ("query", "--format", "csv", "SELECT DISTINCT name FROM annotations")
    assert main(typed(words, run, baseline)) == 0
    cells = [cell for row in csv.reader(io.StringIO(capsys.readouterr().out)) for cell in row]
    assert f"'{FORMULA}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def test_what_is_harmless_stays_as_it_is() -> None:
    for text in ("at::native::vectorized<float>", "größe 平均 🙂", "tab\tand\nline", "::", "a::error::b"):
        assert for_log(printable(text)) == text


def test_control_characters_are_shown_by_their_pictures() -> None:
    assert printable("\x1b[31m\x00\x7f") == "␛[31m␀␡"
    assert one_line("a\n::error::b") == "a␊::error::b"


@pytest.mark.parametrize("order", ["::error::x", "  ::set-output name=a::b", "##[group]x", "##vso[task.complete]"])
def test_a_line_that_a_ci_system_would_obey_is_none(order: str) -> None:
    assert ORDER.search(f"a\n{order}") is not None
    assert ORDER.search(for_log(f"a\n{order}")) is None
