"""Exit codes in real processes: 1 only for a verdict, and no failure shows a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from usp_prof.cli.app import Exit, run_to_exit

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trace = tiny.Trace(0, 1).step(1, at=0, dur=900).op("aten::mm", 10, 50)
    return tiny.write({0: trace}, folder)


def command(*words: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    variables = {name: str(options.pop(name)) for name in [*options] if name.isupper()}
    environment = os.environ | {"USP_PROF_CACHE": str(cwd / "cache")} | variables
    return subprocess.run(
        [sys.executable, "-m", "usp_prof.cli.app", *map(str, words)],
        text=True,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=cwd,
        check=False,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("info",), ("analyze",), ("tables",), ("--help",)])
def test_a_full_disk_is_a_failure_not_a_verdict(run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    target = () if words[0] in {"tables", "--help"} else (run, "-q")
    with FULL.open("w") as full:
        done = command(*words, *target, cwd=tmp_path, stdout=full)
    assert done.returncode == Exit.FAILED
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [("analyze", "--format", "json"), ("query", "--format", "csv", "SELECT 1"), ("export",), ("baseline save",)],
)
def test_output_to_a_full_disk_is_a_failure_not_a_verdict(run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = (*words[1:-1], run, words[-1]) if words[0] == "query" else (run, *words[1:])
    done = command(*words[0].split(), *path, "-o", FULL, cwd=tmp_path)
    assert done.returncode == Exit.FAILED, done.stderr
    assert "No space left" in done.stderr


def test_an_output_without_a_name_is_unusable(run: Path, tmp_path: Path) -> None:
    done = command("export", run, "-o", "", cwd=tmp_path)
    assert (done.returncode, "names no file" in done.stderr) == (Exit.UNUSABLE, True)


def test_a_closed_pipe_ends_the_command_silently(run: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = command("tables", "-q", cwd=tmp_path, stdout=closed)
    assert done.returncode == Exit.CLOSED_PIPE
    assert done.stderr == ""


def test_a_removed_current_folder_is_unusable_input(run: Path) -> None:
    gone = run.parent / "gone"
    gone.mkdir()
    typed = "import sys; from usp_prof.cli.app import main; sys.exit(main(['info', sys.argv[1]]))"
    words = ["sh", "-c", 'rmdir "$PWD"; exec "$0" -c "$1" "$2"', sys.executable, typed, f"../{run.name}"]
    source = str(Path(__file__).parents[2])
    done = subprocess.run(
        words, cwd=gone, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.UNUSABLE, done.stderr
    assert "the current folder no longer exists" in done.stderr


NOWHERE = """
import errno, sys, tempfile
from usp_prof.cli.app import main

def no_place():  # as in a container whose file system is read-only
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

tempfile._get_default_tempdir = no_place
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [("analyze",), ("query", "SELECT 1"), ("check", "--min", "step_time=0")])
def test_a_run_is_read_from_a_read_only_folder(run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The exit code used to be 2, with a message about the current folder."""
    (tmp_path / "file").write_text("")
    typed = [words[0], str(run), *words[1:], "--cache-dir", str(tmp_path / "file")]
    done = subprocess.run([sys.executable, "-c", NOWHERE, *typed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("columns", ["1", "0", "-5", "x", "99999999"])
def test_any_terminal_width_is_accepted(tmp_path: Path, columns: str) -> None:
    """Every line used to be padded to a hundred million columns, which took minutes."""
    done = command("tables", "ops", cwd=tmp_path, stdout=subprocess.PIPE, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) < 10_000_000


def test_a_missing_temporary_folder_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def nowhere() -> int:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    assert run_to_exit(nowhere, show_tracebacks=False) == Exit.FAILED
    assert "no temporary folder is writable: No usable temporary" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "dashboard --port 70000",
        "dashboard --host nope.invalid",
        "dashboard --ranks x",
        "synth out --seed -1",
        "synth out --mesh dp=2,dp=3",
        "synth out --fault slow_rank:rank=0,factor=-1",
        "synth out --fault host_pause:rank=0,delay_ns=-5",
        "synth out --fault slow_rank:rank=0,factor=1e300",
        "synth out --fault slow_rank:rank=0,rank=0,factor=2",
        "synth out --fault slow_rank:rank=0,factor=2,step=99",
        "synth out --fault slow_rank:rank=1.5",
        "synth out --fault host_pause:rank=0,delay_ns=9007199254740992",
        "synth out --fault slow_link:axis=tp,factor=2",
        "synth out --steps -1",
        "analyze out --sequence -1",
        "analyze out --tokens-per-step 0",
        "plan --model Llama-3-8B --devices 8 --sequence 8192 --batch -1",
        "memory --model Llama-3-8B --sequence 8192 --micro-batch 99999999999999999999",
        "memory --model Llama-3-8B --sequence -1",
        "memory --model Llama-3-8B --sequence 8192 --ranks 0",
        "memory --model Llama-3-8B --sequence 8192 --schedule x",
        "plan --model Llama-3-8B --sequence 8192 --device H100 --devices 8 --batch 8 --run x",
        "plan --model Llama-3-8B --devices 99999999999999999999",
    ],
)
def test_a_value_outside_its_range_is_unusable_input(tmp_path: Path, words: str) -> None:
    done = command(*words.split(), cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert "internal error" not in done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a subreaper is Linux's")
def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """The parent adopts leftover processes, like PID 1 of a container, and waits only for the command."""
    assert command("synth", "run", "--mesh", "dp=2", "-q", cwd=tmp_path, stdout=None).returncode == 0
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"USP_PROF_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, script, sys.executable, "-c", WITH_WORKERS, "analyze", "run", "--format", "json"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0", "0"]


WITH_WORKERS = """
import sys
from usp_prof.cli.app import main
from usp_prof.store import load
load._LITTLE = 0
sys.exit(main())
"""
PARENT = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
try:
    os.waitpid(-1, os.WNOHANG)
    left = 1
except ChildProcessError:
    left = 0
print(status, left)
"""


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "usp_prof", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("usp-prof ")) == (0, True)


def test_a_misspelled_command_suggests_the_nearest(tmp_path: Path) -> None:
    done = command("analyse", "run", cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert "hint: did you mean analyze?" in done.stderr


def test_unknown_words_show_the_usage_of_the_command(tmp_path: Path) -> None:
    done = command("whatif", "run", "rank_as_peers=0", cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert done.stderr.startswith("usage: usp-prof whatif")
    assert done.stderr.endswith("error: unrecognized arguments: rank_as_peers=0\nhint: usp-prof whatif --help\n")


@pytest.mark.parametrize("words", [("read", ".", "--run=--"), ("sweep", ".", "--at-once=--"), ("analyze", ".", "-o--")])
def test_two_dashes_are_no_value_of_an_option(tmp_path: Path, words: tuple[str, ...]) -> None:
    """They became an empty list, and an internal error."""
    done = command(*words, cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert "expected a value, not --\nhint: usp-prof" in done.stderr


@pytest.mark.parametrize("steps", ["1:1", "1-1"])
@pytest.mark.parametrize("words", [("analyze", "--format", "json"), ("export",)])
def test_all_commands_accept_the_same_step_ranges(
    run: Path, tmp_path: Path, words: tuple[str, ...], steps: str
) -> None:
    assert command(words[0], run, *words[1:], "--steps", steps, "-o", "out.json", cwd=tmp_path).returncode == 0
    done = command(words[0], run, *words[1:], "--steps", "4:3", "-o", "out.json", cwd=tmp_path)
    assert (done.returncode, "ends before it begins" in done.stderr) == (Exit.UNUSABLE, True)


def test_a_synthetic_run_needs_a_folder(tmp_path: Path) -> None:
    done = command("synth", "", cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert [*tmp_path.iterdir()] == []


def test_a_synthetic_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    """One rank was written among three of another run, and both were read as one."""
    assert command("synth", "run", "--mesh", "dp=4", "-q", cwd=tmp_path).returncode == 0
    assert command("synth", "run", "--mesh", "dp=4", "--seed", "2", "-q", cwd=tmp_path).returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    done = command("synth", "run", cwd=tmp_path)
    assert (done.returncode, "other ranks" in done.stderr) == (Exit.UNUSABLE, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 300, "no/such/folder"])
def test_a_bad_path_is_unusable_input(tmp_path: Path, path: str) -> None:
    done = command("info", path, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert done.returncode == Exit.UNUSABLE
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("info",), ("analyze", "--format", "json"), ("analyze", "--format", "html"), ("export", "-o", "out.json"),
        ("baseline save", "-o", "b.json"), ("check", "--min", "step_time=0"),
    ],
)  # fmt: skip
def test_file_names_that_are_not_utf_8_are_read(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Files and folder of a run have names in another encoding."""
    folder = tmp_path / os.fsdecode(b"r\xffn")
    trace = tiny.Trace(0, 1).step(1, at=0, dur=900).op("aten::mm", 10, 50)
    tiny.write({0: trace}, folder)
    (written,) = folder.glob("*.json*")
    written.rename(folder / os.fsdecode(b"\xferank0.json"))
    done = command(*words[0].split(), folder, *words[1:], cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("info",), "gr\\u00f6\\u00dfe \\u5e73\\u5747"),
        (("analyze",), "gr??e ?? ?"),
        (("info", "--format", "json"), "größe 平均 🙂"),
        (("analyze", "--format", "json"), "größe 平均 🙂"),
        (("query", "--format", "json", "SELECT 'größe 平均 🙂' AS name"), "größe 平均 🙂"),
    ],
)
def test_characters_that_the_output_cannot_encode_are_escaped(
    tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    """A locale without UTF-8 used to cause an internal error. The JSON content is unchanged."""
    folder = tmp_path / "größe 平均 🙂"
    tiny.write({0: tiny.Trace(0, 1).step(1, at=0, dur=900).op("aten::mm", 10, 50)}, folder)
    typed = (*words[:-1], folder, words[-1]) if words[0] == "query" else (words[0], folder, *words[1:])
    done = command(*typed, cwd=tmp_path, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    shown = json.dumps(json.loads(done.stdout), ensure_ascii=False) if "json" in words else done.stdout
    assert name in shown


@pytest.mark.parametrize("words", [("info",), ("explain",), ("--help",)])
def test_a_closed_output_is_a_failure(run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    target = (run, "-q") if words == ("info",) else ()
    done = command(*words, *target, cwd=tmp_path, preexec_fn=lambda: os.close(1))
    assert done.returncode == Exit.FAILED
    assert done.stderr.startswith("error: standard output is closed\n")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_an_error_that_cannot_be_printed_keeps_its_code(tmp_path: Path) -> None:
    """The exit code used to be 1, as for a regression, because the handler's message failed."""
    words = [sys.executable, "-m", "usp_prof.cli.app", "analyze", "nowhere"]
    with FULL.open("w") as full:
        assert subprocess.run(words, stderr=full, cwd=tmp_path, check=False).returncode == Exit.UNUSABLE


def test_messages_to_a_closed_stream_are_dropped(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "usp_prof.cli.app", "export", str(run), "-o", "merged.json.gz"]
    words += ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(words, cwd=tmp_path, check=False, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0
    assert (tmp_path / "merged.json.gz").exists()


def test_a_shown_traceback_keeps_the_exit_code(tmp_path: Path) -> None:
    done = command("analyze", "nowhere", "--verbose", cwd=tmp_path)
    assert done.returncode == Exit.UNUSABLE
    assert "Traceback" in done.stderr
    assert "\nerror: nowhere does not exist" in done.stderr


INTERRUPTED_IMPORT = """
import sys
from importlib.abc import MetaPathFinder
from usp_prof.cli.app import main

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "usp_prof.cli.commands.analyze":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["analyze", "."]))
"""


def test_ctrl_c_while_a_command_is_imported_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], text=True, stderr=subprocess.PIPE, check=False, timeout=120
    )
    assert done.returncode == Exit.INTERRUPTED
    assert done.stderr == "stopped\n"


def test_a_page_without_its_extra_names_what_to_install(run: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['bokeh'] = None; from usp_prof.cli.app import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "analyze", str(run), "--format", "html", "--cache-dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (Exit.UNUSABLE, "")
    assert done.stderr.endswith("hint: pip install 'usp-prof[report]'\n")


def test_an_internal_failure_names_the_file_with_its_details(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> int:
        raise ZeroDivisionError("by nothing")

    for shows_traceback in (False, True):
        assert run_to_exit(broken, show_tracebacks=shows_traceback) == Exit.FAILED
        shown = capsys.readouterr().err
        assert "error: internal error: ZeroDivisionError: by nothing" in shown
        assert shows_traceback == ("in broken" in shown)
        details = Path(shown.partition("the details are in ")[2].partition(";")[0])
        assert "in broken" in details.read_text()
        details.unlink()


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_exit_code_of_a_command_is_kept(status: int) -> None:
    assert run_to_exit(lambda: status, show_tracebacks=False) == status
