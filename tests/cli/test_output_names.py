"""Invalid output names, for every option that names a file or folder to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, write

from usp_prof.cli.app import main
from usp_prof.model.errors import InputError
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

OUTPUTS = (
    ("analyze", "RUN", "--format", "json", "-o", "NAME"),
    ("analyze", "RUN", "--format", "html", "-o", "NAME"),
    ("analyze", "RUN", "--format", "markdown", "-o", "NAME"),
    ("query", "RUN", "SELECT 1", "-o", "NAME"),
    ("query", "RUN", "SELECT 1", "--format", "parquet", "-o", "NAME"),
    ("export", "RUN", "-o", "NAME"),
    ("baseline", "save", "RUN", "-o", "NAME"),
    *(("check", "RUN", "--min", "step_time=0", "--write", f"{form}=NAME") for form in ("markdown", "json", "junit")),
    ("check", "RUN", "--min", "step_time=0", "--history", "NAME"),
    ("synth", "NAME", "--mesh", "dp=2", "--steps", "2"),
    ("sweep", "SWEEP", "-o", "NAME"),
    ("sweep", "NAME", "--grid", "tp=1"),
    ("whatif", "RUN", "--edit", "comm_faster=2", "-o", "NAME"),
    ("learn", "attention", "--output", "NAME"),
)
IMPOSSIBLE = {
    "a zero byte": "a\0b",
    "in a folder": "a\0b/c.json",
    "half a letter": "\ud800.json",
    "too long": "x" * 300,
}
FOLDER_IS_RIGHT = {"synth", "whatif", "learn"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    trace = Trace(0, 1).step(1, 0, 9000).step(2, 9000, 9000)
    for step in range(2):
        trace.kernel("gemm", 9000 * step + 2000, 600, launch_at=9000 * step + 300)
    write({0: trace}, folder / "run")
    (folder / "sweep").mkdir()
    (folder / "sweep" / "sweep.json").write_text('{"fixed": {}, "cells": []}')
    (folder / "taken").mkdir()
    return folder


def typed(place: Path, words: tuple[str, ...], name: str) -> int:
    path_by_word = {"RUN": str(place / "run"), "SWEEP": str(place / "sweep")}
    return main([path_by_word.get(word, word.replace("NAME", name)) for word in words])


def hold_one_line(shown: str) -> None:
    assert shown.startswith("error: ")
    assert "internal" not in shown
    assert [line.partition(":")[0] for line in shown.splitlines()] in (["error"], ["error", "hint"])


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize("words", OUTPUTS, ids=lambda words: "-".join(word for word in words if word.isalpha()))
def test_an_impossible_name_is_refused_with_a_message(
    place: Path, words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert typed(place, words, name) == 2
    hold_one_line(capsys.readouterr().err)
    assert sorted(path.name for path in place.iterdir()) == ["run", "sweep", "taken"]


@pytest.mark.parametrize("name", ["taken", "taken/", "new/", "", "."])
@pytest.mark.parametrize("words", [words for words in OUTPUTS if "NAME" in words[2:]], ids=lambda words: words[0])
def test_a_folder_is_refused_as_output_file(
    place: Path, words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    if words[0] in FOLDER_IS_RIGHT:
        pytest.skip("it writes a folder")
    assert typed(place, words, name) == 2
    hold_one_line(capsys.readouterr().err)
    assert sorted(path.name for path in place.iterdir()) == ["run", "sweep", "taken"]


@pytest.mark.parametrize("option", ["--cache-dir", "--store"])
@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_an_impossible_store_is_refused(
    place: Path, option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(place / "run"), option, name]) == 2
    hold_one_line(capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--baseline", "--policy", "--history"])
def test_an_empty_file_option_of_check_is_refused(place: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--baseline "$BASELINE"` with an unset variable used to check only the lower bounds, and passed."""
    assert main(["check", str(place / "run"), "--min", "step_time=0", option, ""]) == 2
    assert f"{option} needs a file name" in capsys.readouterr().err


def test_python_raises_an_output_error(place: Path) -> None:
    with pytest.raises(InputError, match="zero byte"):
        open_run(place / "run").report().write("a\0b.json")
