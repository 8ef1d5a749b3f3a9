"""Hostile names: one run with injections for terminals, CI systems, spreadsheets and browsers, in every output."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict
from functools import reduce
from pathlib import Path

import pytest
from tiny import Trace, write

from usp_prof.cli.app import main
from usp_prof.cli.command_files import command_files
from usp_prof.contract import Manifest
from usp_prof.extras.agent.answers import Answers
from usp_prof.extras.agent.folders import Folders
from usp_prof.extras.planner.sweep.cells import Cell
from usp_prof.extras.planner.sweep.rows import Outcome, Status
from usp_prof.model.printable import for_log, one_line, printable

pytestmark = pytest.mark.slow

EVIL = "\x1b[31mred\x07\x9b2J\u202e\uffff|<script>alert(1)</script>\n::error file=a::stolen\n##vso[task.setvariable]x"
FORMULA = "=HYPERLINK(1)"
UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
ORDER = re.compile(r"^\s*::[a-z-]+(\s.*)?::|##\[|##vso\[", re.MULTILINE)
"""The first at the begin of a line only, the others anywhere: so the runner of GitHub and the agent of Azure parse."""


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


@pytest.fixture(scope="module")
def files(run: Path, baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write the other files that commands read, each with names as hostile as the run's own."""
    folder = tmp_path_factory.mktemp("files")
    history, cell = folder / "runs.parquet", Cell(1, (("tp", EVIL),))
    words = ["check", str(run), "--baseline", str(baseline), "--history", str(history), "--commit", EVIL]
    for _ in range(4):
        assert main([*words, "--cache-dir", str(baseline.parent / "cache")]) in {0, 1, 2}
    (folder / "model.json").write_text(json.dumps({
        "name": EVIL, "layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 100, EVIL: EVIL,
    }))  # fmt: skip
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["model", "device", FORMULA], [EVIL, "H100", FORMULA], [FORMULA, EVIL, EVIL]])
    outcome = Outcome(cell.name, 1, {"tp": EVIL}, Status.CRASHED, reason=f"{FORMULA} {EVIL}", model=EVIL)
    place = folder / "sweep" / "cells" / cell.name
    place.mkdir(parents=True)
    (place / "cell.json").write_text(json.dumps(asdict(outcome)))
    declaration = {"fixed": {"dp": FORMULA}, "cells": [{"processes": 1, "options": {"tp": EVIL}}]}
    (folder / "sweep" / "sweep.json").write_text(json.dumps(declaration))
    return {
        "RUN": str(run), "BASELINE": str(baseline), "HISTORY": str(history), "MODEL": str(folder / "model.json"),
        "ROWS": str(folder / "rows.csv"), "SWEEP": str(folder / "sweep"), "FOLDER": str(folder),
    }  # fmt: skip


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
SHAPE = ("--sequence", "64", "--devices", "2", "--device", "H100", "--batch", "4")
OTHER_COMMANDS = (
    *(("trend", "HISTORY", "--format", form) for form in ("terminal", "json")),
    ("trend", "HISTORY", "--metric", EVIL),
    *(("compare", "RUN", "RUN", "--all", "--format", form) for form in ("markdown", "json")),
    ("whatif", "RUN", "--edit", "comm_faster=2", "--format", "json"),
    ("whatif", "RUN", "--edit", EVIL),
    ("whatif", "RUN", "--edit", "comm_faster=2", "-o", "WRITTEN.json"),
    ("export", "RUN", "-o", "WRITTEN.json"),
    ("export", "RUN", "-o", f"FOLDER/{EVIL}/x.json"),
    ("explain",),
    ("explain", EVIL),
    *(("memory", "RUN", "--format", form) for form in ("terminal", "json")),
    *(("memory", "--model", "MODEL", "--sequence", "64", "--format", form) for form in ("terminal", "json")),
    *(("plan", "--model", "MODEL", *SHAPE, "--format", form) for form in ("terminal", "json")),
    ("plan", "RUN", "--devices", "2", "--batch", "4"),
    ("plan", "--model", EVIL, *SHAPE),
    ("plan", "--table", "ROWS"),
    *(("sweep", "SWEEP", "--format", form) for form in ("terminal", "html", "csv")),
    ("sweep", "SWEEP", "--map", EVIL),
    ("sweep", f"FOLDER/none{EVIL}"),
    ("learn",),
    ("learn", EVIL),
    ("mcp", f"FOLDER/none{EVIL}"),
    ("open", f"FOLDER/none{EVIL}", "--perfetto"),
    ("read", "RUN"),
    ("read", "RUN", "--shard", EVIL),
    ("tables", EVIL),
    ("baseline", "save", "RUN", "-o", f"FOLDER/{EVIL}/x.json"),
    ("check", "RUN", "--baseline", "MODEL"),
    ("check", "RUN", "--min", f"{EVIL}=3"),
    ("synth", f"FOLDER/{EVIL}", "--mesh", EVIL),
    ("synth", f"FOLDER/{EVIL}", "--declaration", "MODEL"),
    ("analyze", "RUN", "--model", "MODEL", "--device", EVIL),
    ("analyze", f"FOLDER/{EVIL}"),
    ("dashboard", "FOLDER/\x1b\x07\n::error::x"),
    ("cache", "info"),
)
"""Words in capitals are the fixture's files; WRITTEN is looked at as if it had been printed."""


def typed(words: tuple[str, ...], run: Path, baseline: Path) -> list[str]:
    name, *rest = words
    paths = [str(run), str(run)] if name == "compare" else [str(run)]
    if name == "check":
        rest += ["--baseline", str(baseline)]
    if name == "query":
        return [name, *rest[:-1], *paths, rest[-1], "--cache-dir", str(baseline.parent / "cache")]
    return [name, *paths, *rest, "--cache-dir", str(baseline.parent / "cache")]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:40])
def test_no_reading_command_prints_terminal_or_ci_commands(
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


@pytest.mark.parametrize("words", OTHER_COMMANDS, ids=lambda words: " ".join(words)[:40])
def test_no_other_command_prints_terminal_or_ci_commands(
    files: dict[str, str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "written.json"
    places = {**files, "WRITTEN.json": str(written)}
    typed = [reduce(lambda word, place: word.replace(place, places[place]), places, word) for word in words]
    capsys.readouterr()
    cache = Path(files["BASELINE"]).parent / f"cache{EVIL[:4] if words[0] == 'cache' else ''}"
    status = main([*typed, "--cache-dir", str(cache)])
    out, err = capsys.readouterr()
    content = written.read_text(encoding="utf-8") if written.exists() else ""
    assert status in {0, 1, 2}
    for text in filter(None, (content, out if "json" in words else "")):
        json.loads(text)
    for text in (out, err, content):
        assert UNSHOWN.search(text) is None, UNSHOWN.search(text)
    for text in (out, err):
        assert ORDER.search(text) is None, ORDER.search(text)
    assert "html" not in words or "<script>alert(1)" not in out
    if "csv" in words or "--table" in words:
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert [cell for cell in cells if cell.startswith(("=", "@", "\t"))] == []


def test_every_command_is_tested_with_hostile_names() -> None:
    assert {words[0] for words in (*COMMANDS, *OTHER_COMMANDS)} == set(command_files())


def test_replies_to_agents_contain_no_terminal_or_ci_commands(run: Path, baseline: Path) -> None:
    answers = Answers(Folders([str(run.parent)]), str(baseline.parent / "cache"))
    replies = (
        answers.open(), answers.open(run.name), answers.summary(run.name), answers.summary(run.name, "kernels"),
        answers.findings(run.name), answers.sql(run.name, "SELECT DISTINCT name FROM annotations"),
        answers.whatif(run.name, ["comm_faster=2"]), answers.compare(run.name, run.name),
    )  # fmt: skip
    for reply in replies:
        for text in texts_in(reply.plain()):
            assert UNSHOWN.search(text) is None, text
            assert ORDER.search(text) is None, text


def texts_in(data: object) -> list[str]:
    """List all texts of JSON, keys among them."""
    if isinstance(data, dict):
        return [text for key, inner in data.items() for text in (key, *texts_in(inner))]
    if isinstance(data, list):
        return [text for inner in data for text in texts_in(inner)]
    return [data] if isinstance(data, str) else []


def test_csv_output_contains_no_formulas(run: Path, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = ("query", "--format", "csv", "SELECT DISTINCT name FROM annotations")
    assert main(typed(words, run, baseline)) == 0
    cells = [cell for row in csv.reader(io.StringIO(capsys.readouterr().out)) for cell in row]
    assert f"'{FORMULA}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def test_harmless_text_is_unchanged() -> None:
    for text in ("at::native::vectorized<float>", "größe 平均 🙂", "tab\tand\nline", "::", "a::error::b"):
        assert for_log(printable(text)) == text


def test_control_characters_are_replaced_by_visible_symbols() -> None:
    assert printable("\x1b[31m\x00\x7f") == "␛[31m␀␡"
    assert one_line("a\n::error::b") == "a␊::error::b"


@pytest.mark.parametrize("order", ["::error::x", "  ::set-output name=a::b", "##[group]x", "a ##vso[task.complete]"])
def test_ci_commands_in_logs_are_defused(order: str) -> None:
    assert ORDER.search(f"a\n{order}") is not None
    assert ORDER.search(for_log(f"a\n{order}")) is None
