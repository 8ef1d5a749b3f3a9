"""Every example of `--help` and of the docs is run as written, in a folder with the files that it names.

`NOT_TYPED` lists those that cannot run on every machine, with the reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import pickle
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiers import thinned
from torture.descriptions import MODEL, SNAPSHOT

from usp_prof.cli.app import common_options, main
from usp_prof.cli.command_files import command_files, load
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_IN_ORDER = ("README.md", "tutorial.md")
"""Pages whose blocks make what later ones name: test_code.py runs them."""
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
CONTINUED = re.compile(r"\\\n\s*")
"""Where a shell reads on in the next line."""
SIGN = re.compile(r"^\s*(\$ |- )?")
COMMAND = re.compile(r"\s*(\$ |(- )?(usp-prof|torchrun|srun|pip|python3?|uvx?|scripts/\S+) )")
"""A line that a reader would type: behind a prompt, or one that begins with a command."""
NOT_TYPED = {
    r"usp-prof dashboard": "a server that waits; tests/dashboard opens its pages",
    r"usp-prof mcp": "a server that waits; tests/agent talks to it",
    r"usp-prof open": "a server that waits; tests/export/test_perfetto.py fetches from it",
    r"usp-prof analyze .* --log": "needs an account; tests/report/test_trackers.py logs offline",
    r"usp-prof plan traces/run-8r": "needs a run whose step it predicts well: docs/planning.md has one",
    r"usp-prof learn \w+": "records for a minute; tests/learn does it with less",
    r"usp-prof sweep (sweeps|traces)": "trains for minutes; tests/planner/test_sweep.py has a trainer of its own",
    r"usp-prof sweep --published": "the table is no part of this repository; test_sweep.py has one of its form",
    r"usp-prof synth .*--events": "makes 64 ranks of a million events; benchmarks/ does",
    r"usp-prof analyze --follow": "waits for a job to end; tests/cli/test_follow.py",
    r".*--executor dask:": "needs a cluster; tests/store starts one of its own",
    r".*s3://": "needs a bucket; tests/store/test_object_stores.py has one of its own",
    r"srun|#SBATCH": "needs Slurm",
    r"uvx ": "installs from a package index",
    r"pip install": "installs; scripts/test-wheels does it in environments of its own",
    r"torchrun": "trains; .ci/run and tests/trainer do",
    r"scripts/|python -m pytest": "runs these tests",
}
PLACES = {"/shared/store": "store", "/scratch/usp-prof": "store", "/data/runs": "traces", "traces/*/rank0*.json.gz": ""}
"""Folders outside of the test's own, and their replacements."""
STATUS = {r"usp-prof check|usp-prof trend .*--fail": {0, 1}, r"usp-prof (plan|memory)": {0, 1}}
"""Commands whose exit code is a verdict on what the test made."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with all files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    traces = folder / "traces"
    declared = {
        "mesh": {"dp": 2, "tp": 2, "pp": 2}, "work": {"first_step": 1, "steps": 8, "micro_batches": 4},
        "shape": {"layers": 4},
    }  # fmt: skip
    write(Declaration.from_dict(declared), folder / "made")
    traces.mkdir()
    read = [line for line in every_line() if "usp-prof synth" not in line]
    for name in sorted({name for line in read for name in re.findall(r"traces/([\w.-]+)", line)}):
        recorded = ROOT / "traces" / name
        (traces / name).symlink_to(recorded if recorded.exists() else folder / "made")
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "llama.json").write_text(json.dumps(MODEL | {"layers": 32, "heads": 32, "hidden": 4096}))
    (folder / "run.json").write_text(json.dumps(declared))
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(SNAPSHOT))
    with (folder / "rows.csv").open("w", newline="") as file:
        names = ("model", "sequence", "device", "devices", "tp", "micro_batches")
        csv.writer(file).writerows([names, ("Llama-3-8B", 4096, "H100", 8, 8, 4)])
    (folder / "policy.toml").write_text(
        re.findall(r"```toml\n(.*?)```", (ROOT / "docs/reference/gate.md").read_text(), re.DOTALL)[0]
    )
    cache = str(folder / "cache")
    assert (
        main(["baseline", "save", str(folder / "made"), "-o", str(folder / "baseline.json"), "--cache-dir", cache]) == 0
    )
    words = ["check", str(folder / "made"), "--baseline", str(folder / "baseline.json"), "--cache-dir", cache]
    assert main([*words, "--policy", str(folder / "policy.toml"), "--history", str(folder / "runs.parquet")]) in {0, 1}
    return folder


def lines_of_help() -> list[str]:
    """List the examples of every command."""
    lines = [line for name in command_files() for line in CONTINUED.sub("", load(name).EXAMPLES).splitlines()]
    return [re.sub(r"\s{2,}(\(.*\)|#.*)$", "", line.strip()) for line in lines]


def lines_of_pages() -> Iterator[str]:
    """Return the commands of every block of any kind; those in `sh` blocks need no prompt."""
    for page in PAGES:
        for kind, code in FENCE.findall(page.read_text(encoding="utf-8")):
            if page.name in RUN_IN_ORDER and kind == "sh":
                continue
            for line in CONTINUED.sub("", code).splitlines():
                typed = SIGN.sub("", line).strip()
                if typed and (kind in {"sh", "bash"} or COMMAND.match(line)) and "[options]" not in typed:
                    yield re.sub(r"\s{2,}(\(.*\)|#.*)$", "", typed)


def every_line() -> list[str]:
    """List all examples, each once, those of `--help` first."""
    return list(dict.fromkeys([*lines_of_help(), *lines_of_pages()]))


def why_not(line: str) -> str:
    """Return why an example is not run; empty if it is."""
    return next((why for pattern, why in NOT_TYPED.items() if re.match(pattern, line)), "")


def one_of_each(lines: list[str]) -> list[str]:
    """Return one example per command, or all of them if the whole suite runs."""
    by_command: dict[str, list[str]] = {}
    for line in lines:
        by_command.setdefault(" ".join(line.split()[:2]), []).append(line)
    return [line for group in by_command.values() for line in thinned(group, len(group))]


TYPED = [line for line in every_line() if not why_not(line)]


@pytest.mark.parametrize("line", one_of_each(TYPED))
def test_each_example_runs_as_typed(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("USP_PROF_CACHE", str(place / "cache"))
    for typed_path, real_path in PLACES.items():
        line = line.replace(typed_path, real_path or typed_path)
    predicted = place / "predicted"
    if "-o predicted" in line:
        shutil.rmtree(predicted, ignore_errors=True)
    elif not predicted.exists():
        shutil.copytree(place / "made", predicted)
    for part in line.split(" && "):
        name, *words = shlex.split(part.replace('"$(git rev-parse --short HEAD)"', "abc123"))
        if ">" in words:  # as a shell splits it
            words = words[: words.index(">")]
        assert name == "usp-prof", f"say in NOT_TYPED why this is not typed: {part}"
        status = main(words)
        allowed = next((codes for pattern, codes in STATUS.items() if re.match(pattern, part)), {0})
        assert status in allowed, f"{part} exits with {status}: {capsys.readouterr().err}"


def test_every_reason_for_not_running_is_needed() -> None:
    lines = every_line()
    assert [pattern for pattern in NOT_TYPED if not any(re.match(pattern, line) for line in lines)] == []


def test_every_kind_of_code_block_is_covered_by_a_test() -> None:
    kinds = {kind for page in PAGES for kind, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
    kinds_with_test = {
        "",
        "sh",
        "bash",
        "console",
        "text",
        "{toctree}",
        "{include} ../usp_prof/extras/agent/SKILL.md",
        "json",
        "toml",
        "yaml",
        "python",
        "python no-run",
    }
    assert kinds <= kinds_with_test


INLINE = [
    (page.name, command)
    for page in PAGES
    for command in re.findall(r"`(usp-prof [a-z][^`]*)`", FENCE.sub("", page.read_text(encoding="utf-8")))
]
"""Commands within a sentence: most of them are cut short, so that only their names and options can be looked up."""


def test_inline_commands_use_existing_options() -> None:
    assert len(INLINE) > 50
    for page, command in INLINE:
        _, name, *words = command.split()
        assert name in command_files(), f"{page}: {command}"
        options = set(re.findall(r"--[a-z-]+", " ".join(words)))
        assert options <= options_of(name), f"{page}: {command}"


def options_of(name: str) -> set[str]:
    """Return the options of a command."""
    parser = argparse.ArgumentParser()
    load(name).configure(parser)
    common_options(parser)
    return set(re.findall(r"--[a-z-]+", parser.format_help()))


def test_python_blocks_run_or_state_why_not() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for before, code in re.findall(r"([^\n]*)\n*^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            runs = page.name in RUN_IN_ORDER or "<!-- not run: " in before
            assert runs or PYTHON_ELSEWHERE.get(page.name), f"{page.name}: {code}"


PYTHON_ELSEWHERE = {
    "index.md": "test_the_python_blocks_of_each_page_run",
    "whatif.md": "test_the_python_blocks_of_each_page_run",
    "ci.md": "a fixture of the pytest plugin; tests/gate/test_command.py",
    "scale.md": "needs an executor; tests/store/test_load.py",
}
"""Pages whose Python is run by another test, or needs what a page cannot make."""


@pytest.mark.parametrize("page", ["index.md", "whatif.md"])
def test_the_python_blocks_of_each_page_run(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("USP_PROF_CACHE", str(place / "cache"))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    exec(compile(code, page, "exec"), {})  # noqa: S102 - the page's own code
