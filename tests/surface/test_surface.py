"""Public surface: exported names, exit codes, and a start without imports."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tiny import Trace

import usp_prof
from usp_prof.cli.app import build_parser, main
from usp_prof.cli.command_files import command_files, load, summary_of
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.run import open_run

HEAVY = {"torch", "pandas", "bokeh", "streamlit", "duckdb", "pyarrow", "numpy"}


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and list the heavy packages that it loaded."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & HEAVY


def test_exported_names_are_frozen() -> None:
    assert usp_prof.__all__ == ["Run", "UspProfError", "__version__", "check", "compare", "memory", "open_run", "plan"]
    assert dir(usp_prof) == sorted(usp_prof.__all__)


def test_exported_names_exist() -> None:
    assert all(getattr(usp_prof, name) is not None for name in usp_prof.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        usp_prof.nothing  # noqa: B018 - the access is the test


def test_importing_loads_no_heavy_libraries() -> None:
    assert loaded_by("import usp_prof") == set()


def test_help_loads_no_heavy_libraries() -> None:
    code = "import usp_prof.cli.app as a, contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): a.main([])"
    assert loaded_by(code) == set()


def test_a_warm_report_needs_neither_pandas_nor_duckdb(tmp_path: Path) -> None:
    write(Declaration(), tmp_path / "run", described=True)
    open_run(tmp_path / "run", cache_dir=tmp_path / "cache")
    code = (
        "from usp_prof import open_run\nfrom usp_prof.report.build import analyze, build\n"
        f"tables = open_run({str(tmp_path / 'run')!r}, cache_dir={str(tmp_path / 'cache')!r}).tables\n"
        "build(tables, analyze(tables), name='run')"
    )
    assert loaded_by(code) == {"numpy", "pyarrow"}


def test_a_process_that_reads_traces_loads_neither_pandas_nor_duckdb(tmp_path: Path) -> None:
    trace = Trace().step(1, at=0, dur=900).op("aten::mm", at=10, dur=50, dims=[[2, 2]], inputs=["", "1.5"])
    trace.kernel("gemm", at=100, dur=50, launch_at=20).collective("all_reduce", at=200, dur=50, launch_at=40)
    trace.write(tmp_path / "rank0.json")
    code = f"""
from pathlib import Path
from usp_prof.store.rank_jobs import RankJob, run_job
run_job(RankJob(Path({str(tmp_path / "rank0.json")!r}), 0, "key"), None, {str(tmp_path / "cache")!r})
"""
    assert loaded_by(code) == {"numpy", "pyarrow"}


def test_every_module_in_a_folder_of_commands_is_a_command() -> None:
    modules = [
        module.name for module in pkgutil.walk_packages(usp_prof.__path__, "usp_prof.") if ".commands." in module.name
    ]
    assert sorted(name.rpartition(".")[2] for name in modules) == list(command_files())
    assert {load(name).__name__ for name in command_files()} == set(modules)


@pytest.mark.parametrize("name", command_files())
def test_the_summary_of_a_command_is_a_sentence_of_one_line(name: str) -> None:
    assert re.fullmatch(r"[A-Z][^\n]{10,75}\.", summary_of(name))


@pytest.mark.parametrize("name", command_files())
def test_every_command_shows_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        build_parser(name).parse_args([name, "--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"usp-prof {name}" in shown


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["nothing"])
    assert done.value.code == 2
    assert "hint:" in capsys.readouterr().err


def test_a_missing_path_is_unusable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path / "nothing"), "-q"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert "hint: " in shown
    assert "Traceback" not in shown


def test_every_extra_is_tried_alone_by_test_wheels() -> None:
    """`dev` is the environment of these tests, and `docs` builds the site."""
    root = Path(__file__).parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lists = re.findall(r"^(?:small|large)=\((.*?)\)", (root / "scripts" / "test-wheels").read_text(), re.MULTILINE)
    assert sorted(" ".join(lists).split()) == sorted(declared.keys() - {"dev", "docs"})
