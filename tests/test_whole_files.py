from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from usp_prof.whole_files import whole_file, whole_gzip_file


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half of")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        write_half()
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_the_final_name_appears_only_when_the_file_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    with whole_gzip_file(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert gzip.decompress(path.read_bytes()) == b"whole"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with whole_gzip_file(tmp_path / name) as file:
            file.write(b"same")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_target_of_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_file(tmp_path / "link") as file:
        file.write(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"after"


def test_a_device_is_written_directly() -> None:
    with whole_file(Path("/dev/null")) as file:
        file.write(b"gone")
    assert not Path("/dev/null").is_file()


KILLED = """
import os, signal, sys
from pathlib import Path
from usp_prof.whole_files import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half of"); file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_killed_writer_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "before"


ADDING = """
import sys
from pathlib import Path
from usp_prof.whole_files import one_writer, whole_file
path = Path(sys.argv[1])
for _ in range(20):
    with one_writer(path):
        old = path.read_bytes()
        with whole_file(path) as file:
            file.write(old + b"x")
"""


def test_processes_that_append_to_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.touch()
    writers = [subprocess.Popen([sys.executable, "-c", ADDING, path]) for _ in range(4)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    assert path.read_bytes() == b"x" * 80


APPENDING = """
import sys
from pathlib import Path
from usp_prof.whole_files import append_at_once
for part in range(20):
    append_at_once(Path(sys.argv[1]), (sys.argv[2] * 50_000 + "\\n").encode())
"""


def test_concurrent_appends_stay_separate(tmp_path: Path) -> None:
    """Two checks that read a step summary and wrote it with their own text added used to lose one of the two."""
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    started = [subprocess.Popen([sys.executable, "-c", APPENDING, path, letter]) for letter in "abcd"]
    assert [process.wait() for process in started] == [0] * 4
    first, *lines = path.read_text().splitlines()
    assert first == "before"
    assert sorted(lines) == sorted(letter * 50_000 for letter in "abcd" for _ in range(20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of a process are POSIX's")
def test_a_partial_write_to_a_full_disk_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    limited = (
        "import resource, signal, sys; from pathlib import Path; from usp_prof.whole_files import append_at_once\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "append_at_once(Path(sys.argv[1]), b'x' * 9000)"
    )
    ended = subprocess.run([sys.executable, "-c", limited, path], capture_output=True, text=True, check=False)
    assert "OSError" in ended.stderr
    assert path.read_text() == "before\n"
